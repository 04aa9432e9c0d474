from __future__ import annotations

import asyncio

import msgspec

from perdure.activity import Activity, Place, this_task
from perdure.asked import Asked, digest_of
from perdure.asked_effect import AskedEffect, key_of
from perdure.attempt import Attempt, make_attempt
from perdure.boundary import Boundary
from perdure.canonical import INPUT_LIMIT_BYTES, check_size
from perdure.declaration import EffectDeclaration
from perdure.delays import retry_delay, whole_seconds
from perdure.errors import (
    EffectConflict,
    EffectError,
    JournalError,
    PerdureError,
    ReplayMismatch,
    RunParked,
    RunStopped,
    UnaskedOperation,
)
from perdure.fence import Fence
from perdure.ids import stable_key
from perdure.journal.digest import Digester
from perdure.journal.failures import bounded
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
from perdure.ports import Handler, Ownership, Ports
from perdure.retry import RetryPolicy
from perdure.tenure import Tenure

_REMEMBERED_BYTES = 4096
_ANSWERS_A_TURN = 200
_NO_EFFECT = EffectDeclaration()


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


class Performer:
    """Performs the operations of one run under one claim.

    An operation is looked up in the journal, called only when it is not there, and recorded under
    the run's fence before anybody sees its outcome.
    """

    def __init__(self, fence: Fence, journal: Journal, ports: Ports, ownership: Ownership) -> None:
        self.fence = fence
        self.clock = ports.clock
        self.threads = ports.threads
        self.codec, self.secrets = ports.codec, ports.secrets
        self.tenure = Tenure(fence.run_id, ownership, ports.clock)
        self.activity = Activity(fence.run_id)
        self.executed = 0
        self.replayed = 0
        self._replay, self._begun = Replay(journal), journal.begun
        self._digester = Digester()
        self.store = ports.store
        self._observer = ports.observer
        self._probe = ports.probe
        self._boundary = Boundary(fence, ports, ownership, self.tenure, self.activity)

    async def perform(
        self,
        invocation: Invocation,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
        above: tuple[Place, ...] = (),
        effect: EffectDeclaration | None = None,
    ) -> Performed:
        """Return the recorded outcome of an operation, or call its handler and record it.

        `above` are the operations that it is asked for below of, outermost first. `effect` says
        what the handler does to the world, or None: a receipt is claimed before it is called.
        An ordinary exception out of the handler becomes a recorded `Failure`, unless the operation
        has an effect that may have been applied; cancellation and the signals of `perdure.errors`
        leave no record: the operation runs again, or its effect is settled first.

        Durable when it returns: the record, fsynced, and with it the receipt.
        If it raises: `RunParked` on a `ReplayMismatch` (nothing that differs was called) or on an
        `EffectAmbiguous` (a person has to say what became of it), `LeaseLost` or a `StorageError`
        (no record; the handler may have been called), `InvalidInvocation`, `InvalidPayload` or
        `DuplicateOperation` (it was not called). The first three are sticky: the run gets nothing
        more done in this execution.
        """
        await self.tenure.refuse(self._refusal(above))
        digests = self._digester.digest(invocation.step_id, invocation.input_json, cuts)
        asked = Asked(invocation, digests.whole, above, cuts, digests.newest)
        row = self._find(asked)
        if row is not None:
            return await self._answer(row)
        _check_new(invocation)
        place = asked.place
        self.activity.begin(place)
        try:
            return await self._execute(asked, handler, retry, effect)
        finally:
            self.activity.end(place)

    def recall(self, invocation: Invocation, *, above: tuple[Place, ...] = ()) -> Performed | None:
        """Return the recorded outcome of an operation where it is at hand.

        None says nothing: `perform` may still find it. Raises as `perform` does.
        """
        if self._refusal(above) is not None:
            return None
        held = self.holds(invocation.step_id, invocation.sequence)
        if self.replayed % _ANSWERS_A_TURN == 0 or not held:
            return None
        row = self._find(Asked(invocation, digest_of(invocation), above))
        if row is None or row.payload is None:
            return None
        return self._replayed(row, row.payload)

    def holds(self, step_id: str, sequence: int) -> bool:
        """Return whether an operation is recorded, so that its handler is not called."""
        return self._replay.holds(step_id, sequence)

    async def delay(
        self, invocation: Invocation, seconds: float, *, above: tuple[Place, ...] = ()
    ) -> None:
        """Wait until `seconds` after the delay was first asked for, whatever happened since.

        The input of the invocation is an object with `delay_ms`, which is `seconds`.

        Durable when it returns: the record that the delay is over.
        If it raises: as `perform`.
        """
        await self.tenure.refuse(self._refusal(above))
        asked = Asked(invocation, digest_of(invocation), above)
        row = self._find(asked)
        if row is not None:
            await self._answer(row)
            return
        timer = self._find_timer(asked)
        if timer is None:
            timer = await self._begin_timer(asked, self.clock.now() + seconds)
        await self._wait(asked, timer.wake_at)

    async def unfinished(self) -> PerdureError | None:
        """Return why the run cannot be over although its code is, or None.

        An effect of it is in doubt, or it was not asked for what was recorded or begun before.
        """
        doubt = await self._boundary.left_in_doubt()
        if doubt is not None:
            return doubt
        places = self._replay.unasked()
        for place, operation_key in self._replay.unasked_effects():
            if await self._boundary.is_open(operation_key):
                places.append(place)
        run_id = self.fence.run_id
        keys = [stable_key(run_id, *place) for place in sorted(places)]
        return UnaskedOperation(run_id, keys) if keys else None

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
        if self.replayed % _ANSWERS_A_TURN == 0:
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

    async def _execute(
        self,
        asked: Asked,
        handler: Handler,
        retry: RetryPolicy | None,
        effect: EffectDeclaration | None,
    ) -> Performed:
        invocation = asked.invocation
        retry_step = f"{invocation.step_id}.{invocation.sequence}.retry"
        failures = self._replay.count(retry_step) if retry is not None else 0
        timer = self._replay.timer(retry_step, failures)
        if timer is not None:
            # A crash cut this delay short; what remains of it is waited under its own input.
            pending = retry_delay(invocation, retry_step, failures, timer.input_json)
            await self._wait(Asked(pending, timer.input_sha256, asked.below), timer.wake_at)
        started_at = self.clock.now()
        retries = (effect or _NO_EFFECT).retries
        while True:
            attempt = failures + 1
            self.activity.act(asked.place)
            try:
                made = await self._make(asked, handler, retry, effect, attempt, started_at)
                error = made.error
                if error is None or retry is None or not retries(retry, error, attempt):
                    return await self._end(asked, made, attempt, started_at)
            finally:
                self.activity.rest(asked.place)
            assert isinstance(made.outcome, Failure)
            await self._back_off(asked, retry_step, retry, attempt, error, made.outcome)
            failures += 1

    async def _make(
        self,
        asked: Asked,
        handler: Handler,
        retry: RetryPolicy | None,
        effect: EffectDeclaration | None,
        attempt: int,
        started_at: float,
    ) -> Attempt:
        """Make one attempt; where it has an effect, through the boundary."""
        if this_task().cancelling():
            # A cancellation that is still on its way is not to look like the handler's own.
            await asyncio.sleep(0)
        if (begun := self._begun.get(asked.place)) and begun != key_of(asked.invocation, effect):
            # What was begun may have been applied, whatever the code calls it now.
            raise self._parked(asked, EffectConflict(begun, "here under another name or target"))
        if effect is None:
            return await self._attempt(asked, handler)
        asked_effect = AskedEffect(
            asked.invocation,
            asked.digest,
            effect,
            call=lambda: self._attempt(asked, handler),
            record_of=lambda outcome: self._record_of(asked, outcome, attempt, started_at),
            retries=None if retry is None else lambda error: effect.retries(retry, error, attempt),
            attempt=attempt,
        )
        try:
            return await self._boundary.apply(asked_effect)
        except (EffectError, JournalError) as error:
            parked = self._parked(asked, error)
            # What is under way beside it has an end that is to be known.
            await self.activity.others_rest(asked.place, asked.above)
            raise parked from error

    async def _attempt(self, asked: Asked, handler: Handler) -> Attempt:
        self.tenure.confirm()
        self.executed += 1
        self._observer.count("perdure_operation_executed_total")
        invocation = asked.invocation
        place = f"{invocation.step_id}/{invocation.sequence}"
        self._probe(f"operation.call {place}")
        made = await make_attempt(handler)
        refusal = self.tenure.refusal()
        if refusal is not None and (
            # Code that swallowed a signal of an operation below this one has no outcome to record.
            self.activity.was_cut(asked.place) or not isinstance(refusal, RunParked)
        ):
            raise refusal
        self._probe(f"operation.called {place}")
        outcome = bounded(made.outcome, len(invocation.input_json))
        return msgspec.structs.replace(made, outcome=outcome)

    async def _back_off(
        self,
        asked: Asked,
        step_id: str,
        retry: RetryPolicy,
        attempt: int,
        error: Exception,
        failure: Failure,
    ) -> None:
        invocation = asked.invocation
        self._observer.count("perdure_operation_retried_total")
        seconds = retry.delay_seconds(invocation.run_id, attempt, invocation.sequence, error)
        document = msgspec.json.encode(
            {"delay_ms": round(seconds * 1000), "error_name": failure.error_name}
        )
        again = retry_delay(invocation, step_id, attempt, document)
        await self.delay(again, seconds, above=asked.below)

    async def _begin_timer(self, asked: Asked, wake_at: float) -> TimerRow:
        invocation, digest = asked.invocation, asked.digest
        self.tenure.confirm()
        await self.tenure.insist(
            lambda: self.store.begin_timer(self.fence, invocation, digest, wake_at)
        )
        timer = timer_of(invocation, digest, wake_at)
        if self.activity.beside():
            # A handler that is tried again asks again for a delay that was cut short.
            self._replay.add_timer(timer)
        return timer

    async def _wait(self, asked: Asked, wake_at: float) -> None:
        started_at = self.clock.now()
        # Wall time may have been set since the delay began: it never waits for more than the whole.
        whole = whole_seconds(asked.invocation)
        await self.clock.sleep(min(max(0.0, wake_at - started_at), whole))
        await self._record(asked, Success(b"{}"), 1, started_at)

    async def _end(self, asked: Asked, made: Attempt, attempt: int, started_at: float) -> Performed:
        """Record what an operation came to, unless that was done along with its receipt."""
        record = made.record
        if record is None:
            return await self._record(asked, made.outcome, attempt, started_at)
        self._remember(asked, record)
        return _performed(record)

    async def _record(
        self, asked: Asked, outcome: Outcome, attempt: int, started_at: float
    ) -> Performed:
        record = self._record_of(asked, outcome, attempt, started_at)
        await self.tenure.insist(lambda: self.store.append_record(self.fence, record))
        self._remember(asked, record)
        return _performed(record)

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


def _performed(record: NewRecord) -> Performed:
    return Performed(
        record.outcome, replayed=False, attempt=record.attempt, finished_at=record.finished_at
    )


def _check_new(invocation: Invocation) -> None:
    invocation.check_identity()
    what = f"the input of operation {invocation.stable_key}"
    check_size(invocation.input_json, what=what, limit_bytes=INPUT_LIMIT_BYTES)
