from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import msgspec

from perdure.activity import Activity, this_task
from perdure.canonical import INPUT_LIMIT_BYTES, check_size
from perdure.delays import retry_delay, whole_seconds
from perdure.errors import (
    LeaseLost,
    PerdureError,
    ReplayMismatch,
    RunParked,
    RunStopped,
    StorageBusy,
    StorageError,
    StorageFull,
)
from perdure.fence import Fence
from perdure.ids import stable_key
from perdure.journal.digest import Digester
from perdure.journal.failures import bounded, failure_of
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Success, success_of
from perdure.journal.replay import Replay
from perdure.journal.store import (
    Journal,
    JournalRow,
    NewRecord,
    TimerRow,
    row_of,
    timer_of,
    unpack_outcome,
)
from perdure.observe import log
from perdure.ports import Handler, Ownership, Ports
from perdure.retry import RetryPolicy

T = TypeVar("T")

_REMEMBERED_BYTES = 4096
_ANSWERS_A_TURN = 200


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


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """An operation as it was asked for; `nested` tells that it was below another one."""

    invocation: Invocation
    digest: bytes
    nested: bool
    cuts: tuple[int, ...] = ()
    beginnings: tuple[bytes, ...] = ()

    @property
    def place(self) -> tuple[str, int]:
        return self.invocation.step_id, self.invocation.sequence


class Performer:
    """Performs the operations of one run under one claim.

    An operation is looked up in the journal, called only when it is not there, and recorded under
    the run's fence before anybody sees its outcome.
    """

    def __init__(self, fence: Fence, journal: Journal, ports: Ports, ownership: Ownership) -> None:
        self.fence = fence
        self.clock = ports.clock
        self.threads = ports.threads
        self.parked: PerdureError | None = None
        self.refused: StorageError | None = None
        self.lost = False
        self.activity = Activity(fence.run_id)
        self.executed = 0
        self.replayed = 0
        self._refusals = 0
        self._replay = Replay(journal)
        self._digester = Digester()
        self._store = ports.store
        self._ownership = ownership
        self._observer = ports.observer
        self._probe = ports.probe

    async def perform(
        self,
        invocation: Invocation,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
        nested: bool = False,
    ) -> Performed:
        """Return the recorded outcome of an operation, or call its handler and record it.

        `nested` tells that it is asked for below another operation.

        An ordinary exception out of the handler becomes a recorded `Failure`; cancellation and
        the signals of `perdure.errors` leave no record, so that the operation runs again.

        Durable when it returns: the record, fsynced.
        If it raises: `RunParked` on a `ReplayMismatch` (nothing that differs was called),
        `LeaseLost` or a `StorageError` (no record; the handler may have been called),
        `InvalidInvocation`, `InvalidPayload` or `DuplicateOperation` (it was not called). The
        first three are sticky: the run gets nothing more done in this execution.
        """
        refusal = self._refusal(nested=nested)
        if refusal is not None:
            await self._refuse(refusal)
        digests = self._digester.digest(invocation.step_id, invocation.input_json, cuts)
        asked = _Asked(invocation, digests.whole, nested, cuts, digests.newest)
        row = self._find(asked)
        if row is not None:
            return await self._answer(row)
        _check_new(invocation)
        place = asked.place
        self.activity.begin(place)
        try:
            return await self._execute(asked, handler, retry)
        finally:
            self.activity.end(place)

    def recall(self, invocation: Invocation, *, nested: bool = False) -> Performed | None:
        """Return the recorded outcome of an operation where it is at hand.

        None says nothing: `perform` may still find it. Raises as `perform` does.
        """
        if self._refusal(nested=nested) is not None:
            return None
        if self.replayed % _ANSWERS_A_TURN == 0 or not self._replay.holds(invocation):
            return None
        row = self._find(_Asked(invocation, _digest(invocation), nested))
        if row is None or row.payload is None:
            return None
        return self._replayed(row, row.payload)

    async def delay(self, invocation: Invocation, seconds: float, *, nested: bool = False) -> None:
        """Wait until `seconds` after the delay was first asked for, whatever happened since.

        The input of the invocation is an object with `delay_ms`, which is `seconds`.

        Durable when it returns: the record that the delay is over.
        If it raises: as `perform`.
        """
        refusal = self._refusal(nested=nested)
        if refusal is not None:
            await self._refuse(refusal)
        asked = _Asked(invocation, _digest(invocation), nested)
        row = self._find(asked)
        if row is not None:
            await self._answer(row)
            return
        timer = self._find_timer(asked)
        if timer is None:
            timer = await self._begin_timer(asked, self.clock.now() + seconds)
        await self._wait(asked, timer.wake_at)

    def park(self, cause: PerdureError) -> RunParked:
        """Stop the run for a person to look at: every further operation is refused.

        Sticky, because code that swallows the signal must still get nothing done.
        """
        if self.parked is None:
            self.parked = cause
        return RunParked(self.parked)

    def unasked(self) -> list[str]:
        """Return the keys that earlier executions recorded and this one did not ask for."""
        run_id = self.fence.run_id
        return [stable_key(run_id, *place) for place in self._replay.unasked()]

    def _refusal(self, *, nested: bool) -> BaseException | None:
        """Return why an operation may not begin, or None."""
        if self.parked is not None:
            return RunParked(self.parked)
        if self.refused is not None:
            return self.refused
        if self.lost:
            return LeaseLost(self.fence.run_id)
        if self.activity.refuses(nested=nested):
            return RunStopped(self.fence.run_id)
        return None

    async def _refuse(self, refusal: BaseException) -> NoReturn:
        # Code that swallows the refusal and asks again must not keep the loop from the others.
        self._refusals = min(self._refusals + 1, 10)
        await asyncio.sleep(0.001 * 2**self._refusals)
        raise refusal

    def _confirm(self) -> None:
        try:
            self._ownership.check(self.fence.run_id)
        except LeaseLost:
            # Sticky: a lease confirmed too late must not let code go on that swallowed the signal.
            self.lost = True
            raise

    def _find(self, asked: _Asked) -> JournalRow | None:
        try:
            return self._replay.find(asked.invocation, asked.digest)
        except ReplayMismatch as mismatch:
            raise self.park(mismatch) from mismatch

    def _find_timer(self, asked: _Asked) -> TimerRow | None:
        try:
            return self._replay.find_timer(asked.invocation, asked.digest)
        except ReplayMismatch as mismatch:
            raise self.park(mismatch) from mismatch

    async def _answer(self, row: JournalRow) -> Performed:
        if self.replayed % _ANSWERS_A_TURN == 0:
            # Nothing else in a replay waits, and others have work to do.
            await asyncio.sleep(0)
        payload = row.payload
        if payload is None:
            key = (self.fence.run_id, row.step_id, row.sequence)
            payload = await self.insist(lambda: self._store.read_payload(*key))
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

    async def _execute(
        self, asked: _Asked, handler: Handler, retry: RetryPolicy | None
    ) -> Performed:
        invocation = asked.invocation
        retry_step = f"{invocation.step_id}.{invocation.sequence}.retry"
        failures = self._replay.count(retry_step) if retry is not None else 0
        attempt = failures + 1
        timer = self._replay.timer(retry_step, failures)
        if timer is not None:
            # A crash cut this delay short; what remains of it is waited under its own input.
            pending = retry_delay(invocation, retry_step, failures, timer.input_json)
            await self._wait(_Asked(pending, timer.input_sha256, nested=True), timer.wake_at)
        started_at = self.clock.now()
        while True:
            self.activity.act()
            try:
                outcome, error = await self._attempt(asked, handler)
                if (
                    not isinstance(error, Exception)
                    or retry is None
                    or not retry.allows(error, attempt)
                ):
                    return await self._record(asked, outcome, attempt, started_at)
            finally:
                self.activity.rest()
            assert isinstance(outcome, Failure)
            await self._back_off(invocation, retry_step, retry, attempt, error, outcome)
            attempt += 1

    async def _attempt(self, asked: _Asked, handler: Handler) -> tuple[Outcome, Exception | None]:
        self._confirm()
        self.executed += 1
        self._observer.count("perdure_operation_executed_total")
        invocation = asked.invocation
        place = f"{invocation.step_id}/{invocation.sequence}"
        self._probe(f"operation.call {place}")
        cancellations = this_task().cancelling()
        try:
            outcome = await handler()
            error = None
        except (Exception, SystemExit) as raised:
            if this_task().cancelling() > cancellations:
                # What a handler makes of its cancellation says nothing about the operation.
                raise asyncio.CancelledError from raised
            outcome = failure_of(raised)
            error = raised if isinstance(raised, Exception) else None
        # Code that swallowed a signal of an operation below this one has no outcome to record.
        refusal = self._refusal(nested=True)
        if refusal is not None:
            raise refusal
        self._probe(f"operation.called {place}")
        return bounded(outcome, len(invocation.input_json)), error

    async def _back_off(
        self,
        invocation: Invocation,
        step_id: str,
        retry: RetryPolicy,
        attempt: int,
        error: Exception,
        failure: Failure,
    ) -> None:
        self._observer.count("perdure_operation_retried_total")
        seconds = retry.delay_seconds(invocation.run_id, attempt, invocation.sequence, error)
        document = msgspec.json.encode(
            {"delay_ms": round(seconds * 1000), "error_name": failure.error_name}
        )
        again = retry_delay(invocation, step_id, attempt, document)
        await self.delay(again, seconds, nested=True)

    async def _begin_timer(self, asked: _Asked, wake_at: float) -> TimerRow:
        invocation, digest = asked.invocation, asked.digest
        self._confirm()
        await self.insist(lambda: self._store.begin_timer(self.fence, invocation, digest, wake_at))
        timer = timer_of(invocation, digest, wake_at)
        if self.activity.beside():
            # A handler that is tried again asks again for a delay that was cut short.
            self._replay.add_timer(timer)
        return timer

    async def _wait(self, asked: _Asked, wake_at: float) -> None:
        started_at = self.clock.now()
        # Wall time may have been set since the delay began: it never waits for more than the whole.
        whole = whole_seconds(asked.invocation)
        await self.clock.sleep(min(max(0.0, wake_at - started_at), whole))
        await self._record(asked, Success(b"{}"), 1, started_at)

    async def _record(
        self, asked: _Asked, outcome: Outcome, attempt: int, started_at: float
    ) -> Performed:
        finished_at = self.clock.now()
        record = NewRecord(
            asked.invocation,
            asked.digest,
            outcome,
            attempt,
            started_at,
            finished_at,
            asked.nested,
            asked.cuts,
            asked.beginnings,
        )
        await self.insist(lambda: self._store.append_record(self.fence, record))
        if self.activity.beside(asked.place):
            # It may stand below a live operation whose handler is tried again, and asks again.
            self._replay.add(row_of(record, _REMEMBERED_BYTES))
        self.activity.done(asked.place)
        return Performed(outcome, replayed=False, attempt=attempt, finished_at=finished_at)

    async def insist(
        self, work: Callable[[], Awaitable[T]], closing: Callable[[], bool] | None = None
    ) -> T:
        """Do with the store what cannot be left out, for as long as this process owns the run.

        A store that is busy or full is waited for, unless `closing` tells that nobody can wait.

        Durable when it returns: what `work` writes, fsynced.
        If it raises: `LeaseLost`, or a `StorageError` that waiting does not mend. Either is
        sticky, so that the run gets nothing more done here.
        """
        pause = 0.05
        while True:
            try:
                return await work()
            except LeaseLost:
                self.lost = True
                raise
            except (StorageBusy, StorageFull) as error:
                if closing is not None and closing():
                    raise
                log.warning("run %s waits for its store: %s", self.fence.run_id, error)
            except StorageError as error:
                self.refused = error
                raise
            await self.clock.sleep(pause)
            pause = min(pause * 2, 1.0)
            self._confirm()


def _digest(invocation: Invocation) -> bytes:
    return hashlib.sha256(invocation.input_json).digest()


def _check_new(invocation: Invocation) -> None:
    invocation.check_identity()
    what = f"the input of operation {invocation.stable_key}"
    check_size(invocation.input_json, what=what, limit_bytes=INPUT_LIMIT_BYTES)
