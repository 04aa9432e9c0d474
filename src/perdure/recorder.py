from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from perdure.activity import Activity, Place
from perdure.asked import Asked
from perdure.canonical import INPUT_LIMIT_BYTES, check_size
from perdure.errors import PerdureError, ReplayMismatch, RunParked, RunStopped
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.record import Outcome, success_of
from perdure.journal.replay import Replay
from perdure.journal.spending import Spending
from perdure.journal.store import Journal, JournalRow, NewRecord, TimerRow, row_of, unpack_outcome
from perdure.ports import Ownership, Ports
from perdure.tenure import Tenure

_REMEMBERED_BYTES: Final = 4096

FORK_STEP: Final = "perdure.fork"
"""The step under which a run that was made of another one says of which."""

ANSWERS_A_TURN: Final = 200
"""How many operations in a row are answered from the journal before others get their turn."""


class Performed(msgspec.Struct, frozen=True, gc=False):
    """What an operation came to.

    `finished_at` is the wall time, in seconds UTC, at which the outcome was recorded; a replay
    returns the recorded one. `attempt` is the try that gave the outcome, from 1.
    """

    outcome: Outcome
    replayed: bool
    attempt: int
    finished_at: float

    def output(self, key: str) -> bytes:
        """Return the output document, or raise `OperationFailed` or `OperationSuspended`."""
        return success_of(key, self.outcome).output_json


class Recorder:
    """Answers operations of one run from its journal, and records what others come to.

    Nothing is done any more once the run is another worker's, or stops.
    """

    def __init__(self, fence: Fence, journal: Journal, ports: Ports, ownership: Ownership) -> None:
        self.fence = fence
        self.clock = ports.clock
        self.store = ports.store
        self.tenure = Tenure(fence.run_id, ownership, ports.clock)
        self.activity = Activity(fence.run_id)
        self.deadline_at: float | None = None
        self.replayed = 0
        self._replay = Replay(journal)
        self.origin = _origin_of(self._replay) or fence.run_id
        self._observer = ports.observer
        self._spending: Spending | None = None
        self._read_spending = False
        self._ended_runs: list[Callable[[], Awaitable[Sequence[str]]]] = []

    def add_runs(self, ended: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Count to what this run spends what other runs, which have ended, have spent.

        They are asked for, and read, once somebody wants to know.
        """
        self._ended_runs.append(ended)

    async def spending(self) -> Spending:
        """Return what the run has spent, from all that is recorded of it and will be.

        Raises a `StorageError`.
        """
        run_id, spending = self.fence.run_id, self._spending or Spending()
        # What is recorded while the journal is read counts too.
        self._spending = spending
        if not self._read_spending:
            await self.tenure.insist(lambda: spending.read(self.store, run_id))
            self._read_spending = True
        while self._ended_runs:
            for ended in await self.tenure.insist(self._ended_runs.pop()):
                await self._add_run(spending, ended)
        return spending

    async def _add_run(self, spending: Spending, run_id: str) -> None:
        other = Spending()
        await self.tenure.insist(lambda: other.read(self.store, run_id))
        spending.add_run(run_id, other.spent)

    def holds(self, step_id: str, sequence: int) -> bool:
        """Return whether an operation is recorded, so that its handler is not called."""
        return self._replay.holds(step_id, sequence)

    def _refusal(self, above: tuple[Place, ...]) -> BaseException | None:
        """Return why an operation may not begin, or None."""
        refusal = self.tenure.refusal()
        if refusal is None and self.activity.refuses(nested=bool(above)):
            refusal = RunStopped(self.fence.run_id)
        if refusal is not None:
            self.activity.cut(above)
        return refusal

    def _find(self, asked: Asked) -> JournalRow | None:
        try:
            return self._replay.find(asked.invocation, asked.digest)
        except ReplayMismatch as mismatch:
            raise self._parked(asked, mismatch) from mismatch

    def _find_timer(self, asked: Asked) -> TimerRow | None:
        try:
            return self._replay.find_timer(asked.invocation, asked.digest)
        except ReplayMismatch as mismatch:
            raise self._parked(asked, mismatch) from mismatch

    def _parked(self, asked: Asked, cause: PerdureError) -> RunParked:
        # What it is below of has no outcome either, whatever its code makes of the signal.
        self.activity.cut(asked.above)
        return self.tenure.park(cause)

    async def _answer(self, row: JournalRow) -> Performed:
        if self.replayed % ANSWERS_A_TURN == 0:
            # Nothing else in a replay waits, and others have work to do.
            await asyncio.sleep(0)
        payload = row.payload
        if payload is None:
            key = (self.fence.run_id, row.step_id, row.sequence)
            payload = await self.tenure.insist(lambda: self.store.read_payload(*key))
        return self._replayed(row, payload)

    def _replayed(self, row: JournalRow, payload: bytes) -> Performed:
        self.replayed += 1
        self._observer.count("perdure_operation_replayed_total")
        return Performed(
            unpack_outcome(row.status, payload),
            replayed=True,
            attempt=row.attempt,
            finished_at=row.finished_at,
        )

    async def _record(
        self, asked: Asked, outcome: Outcome, attempt: int, started_at: float
    ) -> Performed:
        record = self._record_of(asked, outcome, attempt, started_at)
        await self.tenure.insist(lambda: self.store.append_record(self.fence, record))
        self._remember(asked, record)
        return performed_as(record)

    def _record_of(
        self, asked: Asked, outcome: Outcome, attempt: int, started_at: float
    ) -> NewRecord:
        return NewRecord(
            asked.invocation,
            asked.digest,
            outcome,
            attempt,
            started_at,
            self.clock.now(),
            bool(asked.above),
            asked.cuts,
            asked.beginnings,
        )

    def _remember(self, asked: Asked, record: NewRecord) -> None:
        if self.activity.beside(asked.place):
            # It may stand below a live operation whose handler is tried again, and asks again.
            self._replay.add(row_of(record, _REMEMBERED_BYTES))
        self.activity.done(asked.place)
        if self._spending is not None:
            invocation = record.invocation
            key, kind = invocation.stable_key, invocation.kind
            self._spending.count(key, kind, record.outcome, record.attempt)


def performed_as(record: NewRecord) -> Performed:
    """Return what an operation came to that was just recorded."""
    return Performed(
        record.outcome, replayed=False, attempt=record.attempt, finished_at=record.finished_at
    )


def check_new(invocation: Invocation) -> None:
    """Check an invocation that is to be recorded; raises what is wrong with it."""
    invocation.check_identity()
    what = f"the input of operation {invocation.stable_key}"
    check_size(invocation.input_json, what=what, limit_bytes=INPUT_LIMIT_BYTES)


def _origin_of(replay: Replay) -> str | None:
    row = replay.row(FORK_STEP, 0)
    if row is None or row.payload is None:
        return None
    return msgspec.json.decode(row.payload)["origin"]
