from __future__ import annotations

from perdure.errors import ReplayMismatch
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, JournalRow, TimerRow


class Replay:
    """Answers from what a run has recorded.

    A key that was recorded answers only for the same kind, handler and input digest; with
    anything else different it raises `ReplayMismatch`, and never calls what it replaces.
    """

    def __init__(self, journal: Journal) -> None:
        self._rows = {(row.step_id, row.sequence): row for row in journal.rows}
        self._timers = {(row.step_id, row.sequence): row for row in journal.timers}

    def __len__(self) -> int:
        return len(self._rows)

    def holds(self, invocation: Invocation) -> bool:
        """Return whether anything is recorded under an invocation's key."""
        return (invocation.step_id, invocation.sequence) in self._rows

    def find(self, invocation: Invocation, input_sha256: bytes) -> JournalRow | None:
        """Return the record of an invocation, or None when it has none yet.

        Raises `ReplayMismatch` when the key was recorded for something else.
        """
        row = self._rows.get((invocation.step_id, invocation.sequence))
        if row is not None:
            _check(row, invocation, input_sha256)
        return row

    def find_timer(self, invocation: Invocation, input_sha256: bytes) -> TimerRow | None:
        """Return the delay that was begun under an invocation, or None.

        Raises `ReplayMismatch` when the key was begun for something else.
        """
        row = self._timers.get((invocation.step_id, invocation.sequence))
        if row is not None:
            _check(row, invocation, input_sha256)
        return row

    def timer(self, step_id: str, sequence: int) -> TimerRow | None:
        """Return the delay under way under a key, whatever it was begun with, or None."""
        return self._timers.get((step_id, sequence))

    def count(self, step_id: str) -> int:
        """Return how many of the sequences 1, 2, 3, … of a step were recorded or begun."""
        number = 0
        while (step_id, number + 1) in self._rows or (step_id, number + 1) in self._timers:
            number += 1
        return number

    def add(self, row: JournalRow) -> None:
        """Remember a record of this execution, for operations that may be asked for again."""
        self._rows[row.step_id, row.sequence] = row
        self._timers.pop((row.step_id, row.sequence), None)

    def add_timer(self, row: TimerRow) -> None:
        """Remember a delay that this execution began, for operations that may ask again."""
        self._timers[row.step_id, row.sequence] = row


def _check(row: JournalRow | TimerRow, invocation: Invocation, input_sha256: bytes) -> None:
    if (
        row.input_sha256 == input_sha256
        and row.handler_id == invocation.handler_id
        and row.kind == invocation.kind
    ):
        return
    raise ReplayMismatch(
        invocation.stable_key,
        recorded_kind=row.kind,
        recorded_handler=row.handler_id,
        recorded_sha256=row.input_sha256.hex(),
        asked_kind=invocation.kind.value,
        asked_handler=invocation.handler_id,
        asked_sha256=input_sha256.hex(),
    )
