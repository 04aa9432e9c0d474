from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from perdure.activity import Place, Rest
from perdure.asked import Asked, digest_of
from perdure.delays import whole_seconds
from perdure.errors import InvalidPayload
from perdure.inbox import Message
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Success
from perdure.journal.store import NewRecord, TimerRow, timer_of
from perdure.recorder import Performed, Recorder, check_new, performed_as

_GIVEN_UP: Final = Failure("WaitGivenUp", message="the run's code gave it up")


class Wait(msgspec.Struct, frozen=True):
    """What an operation waits for that comes from outside.

    A message named `awaits` ends it, as `outcome` says of that; after `seconds`, if that is not
    None, it comes to `late`. `begin` writes that it begins, where more is written along with that;
    it is given the digest of the input, and when the time is over in wall seconds, UTC. `begun`
    is called in each execution that waits, once that is written. `look` says what it comes to where
    no message was sent to this run, or None.
    """

    awaits: str
    outcome: Callable[[Message], Awaitable[Outcome]]
    seconds: float | None
    late: Outcome
    begin: Callable[[bytes, float | None], Awaitable[None]] | None = None
    begun: Callable[[], Awaitable[None]] | None = None
    look: Callable[[], Awaitable[Outcome | None]] | None = None


def milliseconds(seconds: float | None) -> int | None:
    """Return seconds as a wait's input has them; raises `InvalidPayload` for no time to wait."""
    if seconds is None:
        return None
    check_seconds(seconds)
    return round(seconds * 1000)


def check_seconds(seconds: Any) -> None:
    """Raise `InvalidPayload` for what is no time to wait."""
    # The largest is some thirty million years, and still a float.
    if not (isinstance(seconds, int | float) and 0 <= seconds < 1e15):
        raise InvalidPayload(f"a run waits for a finite number of seconds, not {seconds!r}")


class Waiter(Recorder):
    """Waits for times and for messages; where one execution stops, the next one goes on."""

    async def delay(
        self, invocation: Invocation, seconds: float, *, above: tuple[Place, ...] = ()
    ) -> None:
        """Wait until `seconds` after the delay was first asked for, whatever happened since.

        The input of the invocation is an object with `delay_ms`, which is `seconds`.

        Durable when it returns: the record that the delay is over.
        If it raises: as `perform`.
        """
        await self.delay_until(invocation, self.clock.now() + seconds, above=above)

    async def delay_until(
        self, invocation: Invocation, wake_at: float, *, above: tuple[Place, ...] = ()
    ) -> None:
        """Wait until a time, in wall seconds, UTC, which stands from when it was first asked for.

        Durable when it returns: the record that the delay is over.
        If it raises: as `perform`.
        """
        await self.tenure.refuse(self._refusal(above))
        asked = Asked(invocation, digest_of(invocation), above)
        row = self._find(asked)
        if row is not None:
            await self._again(asked, await self._answer(row))
            return
        self.activity.begin(asked.place)
        try:
            timer = self._find_timer(asked)
            if timer is None:
                timer = await self._begin_wait(asked, wake_at)
            await self._wait(asked, timer)
        except asyncio.CancelledError:
            await self._give_up(asked)
            raise
        finally:
            self.activity.end(asked.place)

    async def wait_for(
        self, invocation: Invocation, wait: Wait, *, above: tuple[Place, ...] = ()
    ) -> Performed:
        """Return what an operation waits for that comes from outside, or what it is without.

        Durable when it returns: the record, fsynced, and that the message was taken.
        If it raises: as `perform`.
        """
        await self.tenure.refuse(self._refusal(above))
        asked = Asked(invocation, digest_of(invocation), above)
        row = self._find(asked)
        if row is not None:
            return await self._again(asked, await self._answer(row))
        check_new(invocation)
        self.activity.begin(asked.place)
        try:
            timer = self._find_timer(asked)
            if timer is None:
                ends_at = None if wait.seconds is None else self.clock.now() + wait.seconds
                timer = await self._begin_wait(asked, ends_at, wait)
            if wait.begun is not None:
                await wait.begun()
            return await self._receive(asked, wait, timer.wake_at)
        except asyncio.CancelledError:
            await self._give_up(asked)
            raise
        finally:
            self.activity.end(asked.place)

    async def poll(
        self, invocation: Invocation, wait: Wait, *, above: tuple[Place, ...] = ()
    ) -> Performed:
        """Return what an operation takes of what has come so far; without, it is late at once.

        Durable when it returns and if it raises: as `wait_for`.
        """
        await self.tenure.refuse(self._refusal(above))
        asked = Asked(invocation, digest_of(invocation), above)
        row = self._find(asked)
        if row is not None:
            return await self._answer(row)
        check_new(invocation)
        self.activity.begin(asked.place)
        try:
            self.tenure.confirm()
            return await self._receive(asked, wait, self.clock.now())
        finally:
            self.activity.end(asked.place)

    async def _give_up(self, asked: Asked) -> None:
        """Record that the run's code gave a wait up, so that no later execution ends it either.

        What cancels the whole run says nothing of its code.
        """
        activity = self.activity
        whole = activity.stopping or activity.is_being_cancelled()
        refused = self.tenure.refusal() is not None
        if asked.above or whole or refused or activity.is_done(asked.place):
            return
        await asyncio.shield(
            asyncio.ensure_future(self._record(asked, _GIVEN_UP, 1, self.clock.now()))
        )

    async def _again(self, asked: Asked, performed: Performed) -> Performed:
        """Return what a wait came to before; one that was given up goes on until it is again."""
        outcome = performed.outcome
        if not isinstance(outcome, Failure) or outcome.error_name != _GIVEN_UP.error_name:
            return performed
        self.activity.begin(asked.place)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.activity.end(asked.place)
        raise AssertionError

    async def _begin_wait(
        self, asked: Asked, wake_at: float | None, wait: Wait | None = None
    ) -> TimerRow:
        """Write that a delay or a wait begins.

        Durable when it returns: when it ends and what ends it before, fsynced.
        """
        invocation, digest = asked.invocation, asked.digest
        awaits = None if wait is None else wait.awaits
        self.tenure.confirm()
        if wait is not None and wait.begin is not None:
            await self.tenure.insist(partial(wait.begin, digest, wake_at))
        else:
            begin = partial(self.store.begin_timer, self.fence, invocation, digest, wake_at, awaits)
            await self.tenure.insist(begin)
        timer = timer_of(invocation, digest, wake_at, awaits)
        if self.activity.beside(asked.place):
            # A handler that is tried again asks again for a delay that was cut short.
            self._replay.add_timer(timer)
        return timer

    async def _receive(self, asked: Asked, wait: Wait, wake_at: float | None) -> Performed:
        started_at = self.clock.now()
        while True:
            message = await self._next_message(asked, wait, wake_at)
            if message is None:
                late = self._record_of(asked, wait.late, 1, started_at)
                end = partial(self.store.end_wait, self.fence, wait.awaits, late)
                if not await self.tenure.insist(end):
                    continue  # one has come since
                self._remember(asked, late)
                return performed_as(late)
            if not isinstance(message, Message):
                return await self._record(asked, message, 1, started_at)
            outcome = await self.tenure.insist(partial(wait.outcome, message))
            record = self._record_of(asked, outcome, 1, started_at)
            if await self._take(asked, message, record):
                return performed_as(record)

    async def _take(self, asked: Asked, message: Message, record: NewRecord) -> bool:
        take = partial(self.store.take_message, self.fence, message, record)

        async def whole() -> bool:
            landed = await self.tenure.insist(take)
            if landed:
                self._remember(asked, record)
            return landed

        taking = asyncio.ensure_future(whole())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # What was taken all the same would be lost with the cancellation of this wait alone.
            if not await taking or self.activity.stopping:
                raise
            return True

    async def _wait(self, asked: Asked, timer: TimerRow) -> None:
        started_at = self.clock.now()
        wake_at = started_at if timer.wake_at is None else timer.wake_at
        # Wall time may have been set since the delay began: it never waits for more than the whole.
        seconds = min(max(0.0, wake_at - started_at), whole_seconds(asked.invocation))
        with self.activity.resting(asked.below, Rest(wake_at)):
            await self.clock.sleep(seconds)
        await self._record(asked, Success(b"{}"), 1, started_at)

    async def _next_message(
        self, asked: Asked, wait: Wait, wake_at: float | None
    ) -> Message | Outcome | None:
        """Return the message that a wait ends with, or what it came to without one.

        None when its time is over before.
        """
        find = partial(self.store.next_message, self.fence.run_id, wait.awaits)
        # A look that finds nothing is no sign of life: what others write keeps no run in memory.
        with self.activity.resting(asked.below, Rest(wake_at, frozenset({wait.awaits}))):
            while True:
                # Before the look, or what comes right after it would not be heard of.
                heard = self.activity.news()
                found: Message | Outcome | None = await self.tenure.insist(find)
                if found is None and wait.look is not None:
                    found = await self.tenure.insist(wait.look)
                    if found is not None:
                        # What ended since the first look may have been told to this run, too.
                        found = await self.tenure.insist(find) or found
                seconds = None if wake_at is None else wake_at - self.clock.now()
                if found is not None or (seconds is not None and seconds <= 0):
                    return found
                await self._until(heard, seconds)

    async def _until(self, heard: asyncio.Event, seconds: float | None) -> None:
        """Return once there is news, or after some seconds."""
        if seconds is None:
            await heard.wait()
            return
        waiting = [asyncio.ensure_future(heard.wait()), asyncio.ensure_future(self._sleep(seconds))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
