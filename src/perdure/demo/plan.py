from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from perdure.demo.report import Moment
from perdure.effects.support import SideEffectSupport
from perdure.errors import CommandError

_FILE: Final = "turn.json"


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a demo is to do, and what has happened so far.

    `model` is the name of a real one; None for the scripted one.
    """

    kill_at: str
    support: SideEffectSupport
    model: str | None = None
    moments: Sequence[Moment] = ()

    def save(self, folder: Path) -> None:
        """Write the plan to the folder of its demo."""
        (folder / _FILE).write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read the plan of a demo; raises `CommandError` where there is none."""
        try:
            return msgspec.json.decode((folder / _FILE).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise CommandError(
                f"{folder} holds no turn of a demo ({error}); make one with --keep and --no-settle"
            ) from error
