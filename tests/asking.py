"""Runs that ask people for something, and command lines on the database of a folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context
from perdure.approvals import ApprovalKind
from perdure.cli import main
from tests.harness import RUN
from tests.waiting import put_away, waiting_app

REFUND = "branch.a.1.approval.1"
COURIER = "branch.b.1.approval.1"
LONG = "x\x1b[31m" + "y" * 200


class Typed:
    """Runs a command in the current folder; returns exit code, stdout and stderr."""

    url = "sqlite:///runs.db"

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main([*words, "--url", self.url])
        out, err = self._capsys.readouterr()
        return code, out, err

    def document(self, *words: str, code: int = 0) -> Any:
        """Return the one document that a command writes, and check that it is all it writes."""
        ended, out, err = self(*words, "--json")
        assert (ended, err) == (code, "")
        assert out.count("\n") == 1
        return json.loads(out)


def asking(folder: Path, **options: Any) -> App:
    """Return an App whose runs ask for a refund and for what a courier says, and are told."""
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def work(context: Context, order: str) -> list[str]:
        one, other = context.branch("a"), context.branch("b")
        told = await asyncio.gather(
            one.approval("refund", {"order": order}),
            other.approval(
                "courier", {"note": LONG}, kind=ApprovalKind.EXTERNAL, timeout_seconds=7200.0
            ),
        )
        return [repr(answer) for answer in told]

    return app


async def leave(app: App, function: str = "work", value: Any = "A-1", run_id: str = RUN) -> None:
    """Start a run and leave it where it waits, with nobody to execute it."""
    async with app:
        await app.start(function, value, run_id=run_id)
        await put_away(app, run_id)
