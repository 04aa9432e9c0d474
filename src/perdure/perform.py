from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from perdure.activity import Place, this_task
from perdure.asked import Asked, digest_of
from perdure.asked_effect import AskedEffect, key_of
from perdure.attempt import Attempt, make_attempt
from perdure.boundary import Boundary
from perdure.declaration import EffectDeclaration
from perdure.delays import retry_delay
from perdure.errors import (
    EffectConflict,
    EffectError,
    JournalError,
    NotInRun,
    PerdureError,
    RunParked,
    UnaskedOperation,
)
from perdure.fence import Fence
from perdure.ids import stable_key
from perdure.journal.digest import Digester
from perdure.journal.failures import bounded
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure
from perdure.journal.store import Journal
from perdure.ports import Children, Handler, Ownership, Ports
from perdure.recorder import ANSWERS_A_TURN, Performed, check_new, performed_as
from perdure.retry import RetryPolicy
from perdure.tries import Delay, Tries, spent_ms
from perdure.waits import Waiter

if TYPE_CHECKING:
    from perdure.showing import Showing


class Performer(Waiter):
    """Performs the operations of one run under one claim.

    An operation is looked up in the journal, called only when it is not there, and recorded under
    the run's fence before anybody sees its outcome.
    """

    def __init__(self, fence: Fence, journal: Journal, ports: Ports, ownership: Ownership) -> None:
        super().__init__(fence, journal, ports, ownership)
        self.threads = ports.threads
        self.codec, self.secrets = ports.codec, ports.secrets
        self._children = ports.children
        self.in_turn = False
        self.has_streamed = False
        self.showing: Showing | None = None
        """What people see of this execution; None where nobody watches."""
        self.executed = 0
        self._begun = journal.begun
        self._digester = Digester()
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
        check_new(invocation)
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
        if self.replayed % ANSWERS_A_TURN == 0 or not held:
            return None
        row = self._find(Asked(invocation, digest_of(invocation), above))
        if row is None or row.payload is None:
            return None
        return self._replayed(row, row.payload)

    @property
    def children(self) -> Children:
        """What starts runs from inside of this one; raises `NotInRun` where nobody does."""
        if self._children is None:
            raise NotInRun("here no run can be started from inside of another one")
        return self._children

    def seconds_left(self, seconds: float | None) -> float | None:
        """Return how long something may take: some seconds, or what is left until the deadline."""
        if self.deadline_at is None:
            return seconds
        left = max(0.0, self.deadline_at - self.clock.now())
        return left if seconds is None else min(seconds, left)

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
            await self._wait(Asked(pending, timer.input_sha256, asked.below), timer)
        spent = await spent_ms(lambda number: self._input_of(retry_step, number), failures)
        tries = Tries(invocation, retry, effect, self.clock, failures=failures, spent_ms=spent)
        started_at = self.clock.now()
        while True:
            self.activity.act(asked.place)
            try:
                made = await self._make(asked, handler, effect, tries, started_at)
                delay = tries.delay_after(made.error)
                if delay is None:
                    return await self._end(asked, made, tries.number, started_at)
            finally:
                self.activity.rest(asked.place)
            assert isinstance(made.outcome, Failure)
            await self._back_off(asked, retry_step, tries, delay, made.outcome)
            tries.next(delay)

    async def _input_of(self, step_id: str, sequence: int) -> bytes:
        key = (self.fence.run_id, step_id, sequence)
        return await self.tenure.insist(lambda: self.store.read_input(*key))

    async def _make(
        self,
        asked: Asked,
        handler: Handler,
        effect: EffectDeclaration | None,
        tries: Tries,
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
            record_of=lambda outcome: self._record_of(asked, outcome, tries.number, started_at),
            retries=tries.retries,
            attempt=tries.number,
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
        self, asked: Asked, step_id: str, tries: Tries, delay: Delay, failure: Failure
    ) -> None:
        self._observer.count("perdure_operation_retried_total")
        document = tries.request(delay, failure.error_name)
        again = retry_delay(asked.invocation, step_id, tries.number, document)
        await self.delay(again, delay.seconds, above=asked.below)

    async def _end(self, asked: Asked, made: Attempt, attempt: int, started_at: float) -> Performed:
        """Record what an operation came to, unless that was done along with its receipt."""
        record = made.record
        if record is None:
            return await self._record(asked, made.outcome, attempt, started_at)
        self._remember(asked, record)
        return performed_as(record)
