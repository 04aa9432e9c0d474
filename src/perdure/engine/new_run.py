from __future__ import annotations

import hashlib
import math

from perdure.engine.store import NewRun, RunRow
from perdure.errors import InvalidOptions, RunConflict


def check_deadline(seconds: float | None) -> None:
    """Raise `InvalidOptions` for what is no time to end in."""
    if seconds is None:
        return
    if not _is_number(seconds) or not 0 < seconds < math.inf:
        raise InvalidOptions(f"a run has a finite time over 0 to end in, not {seconds!r} seconds")


def check_same(row: RunRow, run: NewRun) -> None:
    """Raise `RunConflict` unless a run that is there is the one that is to be started."""
    if row.function != run.function:
        raise RunConflict(
            f"run {run.run_id} exists and calls {row.function!r}, not {run.function!r}; start this"
            " one under another id"
        )
    if row.input_sha256 != hashlib.sha256(run.input_json).digest():
        raise RunConflict(
            f"run {run.run_id} exists with another input; start this one under another id, or pass"
            " the input it was started with"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
