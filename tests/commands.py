"""The command line `perdure effects` on the database of a folder, and effects for it to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import EffectAmbiguous
from perdure.cli import main
from perdure.effects.support import EffectPolicy
from tests.harness import run
from tests.receipts import ASK, Bank, shop

LOST = ConnectionResetError("no\x1b[31m reply")
URL = ("--url", "sqlite:///runs.db")
SETTLE = ("--why", "the statement", "--expect-version", "2", "--by", "ada")


class Commands:
    """Runs `effects` in the current folder; returns exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["effects", *words, *URL])
        out, err = self._capsys.readouterr()
        return code, out, err

    def document(self, *words: str, code: int = 0) -> Any:
        """Return the one document that a command writes, and check that it is all it writes."""
        ended, out, err = self(*words, "--json")
        assert (ended, err) == (code, "")
        assert out.count("\n") == 1
        return json.loads(out)


def doubtful(folder: Path, policy: EffectPolicy = ASK, bank: Bank | None = None) -> None:
    """Leave an effect of which nobody knows."""

    async def whole() -> None:
        async with shop(folder) as it:
            with pytest.raises(EffectAmbiguous):
                await it.pay_in_time(bank or Bank(LOST), policy)

    run(whole())
