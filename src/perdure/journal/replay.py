from __future__ import annotations

from typing import Final

from perdure.errors import ReplayMismatch
from perdure.journal.difference import difference
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.store import Journal, JournalRow, TimerRow

_OWED: Final = frozenset(
    kind.value
    for kind in (
        OperationKind.MODEL_REQUEST,
        OperationKind.MODEL_STREAM,
        OperationKind.TOOL_CALL,
        OperationKind.MCP_REQUEST,
    )
)


class Replay:
    """Answers from what a run has recorded.

    A key that was recorded answers only for the same kind, handler and input digest; with
    anything else different it raises `ReplayMismatch`, and never calls what it replaces.
    """

    def __init__(self, journal: Journal) -> None:
        self._rows = {(row.step_id, row.sequence): row for row in journal.rows}
        self._timers = {(row.step_id, row.sequence): row for row in journal.timers}
        self._begun = {
            place: key for place, key in journal.begun.items() if place not in self._rows
        }
        self._unasked = {
            key for key, row in self._rows.items() if row.kind in _OWED and not row.nested
        }

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, step_id: str, sequence: int) -> JournalRow | None:
        """Return what is recorded at a place, whatever it was asked with, or None."""
        return self._rows.get((step_id, sequence))

    def holds(self, step_id: str, sequence: int) -> bool:
        """Return whether anything is recorded at a place."""
        return (step_id, sequence) in self._rows

    def find(self, invocation: Invocation, input_sha256: bytes) -> JournalRow | None:
        """Return the record of an invocation, or None when it has none yet.

        Raises `ReplayMismatch` when the key was recorded for something else.
        """
        key = (invocation.step_id, invocation.sequence)
        row = self._rows.get(key)
        if row is not None:
            _check(row, invocation, input_sha256)
            self._unasked.discard(key)
        elif self._begun:
            self._begun.pop(key, None)
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

    def unasked(self) -> list[tuple[str, int]]:
        """Return what earlier executions recorded and this one has not asked for, sorted.

        Only what the code itself asks for: what was performed below another operation is
        answered by that one, and events and delays come and go with it.
        """
        return sorted(self._unasked)

    def unasked_effects(self) -> list[tuple[tuple[str, int], str]]:
        """Return the place and the operation key of what was begun and is not asked for."""
        return sorted(self._begun.items())

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
    mismatch = ReplayMismatch(
        invocation.stable_key,
        recorded=(row.kind, row.handler_id, row.input_sha256.hex()),
        asked=(invocation.kind.value, invocation.handler_id, input_sha256.hex()),
    )
    if isinstance(row, TimerRow):
        mismatch.differ(difference(row.input_json, invocation.input_json))
    elif (row.kind, row.handler_id) == (invocation.kind, invocation.handler_id):
        # It is compared once the run has stopped: what was recorded has to be read for that.
        mismatch.asked_json = invocation.input_json
    raise mismatch
