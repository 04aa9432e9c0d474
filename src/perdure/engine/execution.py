from __future__ import annotations

import asyncio
import enum
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from perdure.activity import Rest
from perdure.clock import Clock
from perdure.context import Context
from perdure.engine.registry import RunFunction
from perdure.engine.stalled import MOST_GIVEN_BACK
from perdure.engine.store import ClaimedRun, RunEnd, RunProblem, RunState
from perdure.engine.turns import TurnRow, turn_of
from perdure.errors import (
    DeadlineExceeded,
    InvalidPayload,
    KeyUnavailable,
    LeaseLost,
    MissingHandler,
    ReplayMismatch,
    RunParked,
    RunStopped,
    StorageCorrupt,
)
from perdure.journal.difference import explain
from perdure.journal.failures import failure_of
from perdure.observe import log
from perdure.perform import Performer
from perdure.wording import printable

if TYPE_CHECKING:
    from perdure.engine.showings import Showings
    from perdure.showing import Showing

_TRACEBACK_CHARACTERS: Final = 8192
_CLEANUP_SECONDS: Final = 20.0


class StopReason(enum.Enum):
    """Why a worker stops the code of a run."""

    CANCELLED = "cancelled"
    CLOSING = "closing"
    DEADLINE = "deadline"
    LOST = "lost"
    WAITING = "waiting"


_GOES_ON: Final = frozenset({StopReason.CLOSING, StopReason.WAITING})
"""Why code is stopped that goes on in another execution."""


class Execution:
    """One execution of a run by this worker, from its claim to its end."""

    def __init__(self, claim: ClaimedRun, function: RunFunction) -> None:
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        self.reason: StopReason | None = None
        self.over = False
        """Whether the run's end is written, and whoever waits for it was told."""
        self._showing: Showing | None = None
        self._function = function
        self._performer: Performer | None = None
        self.given_back = claim.fence.generation - 1
        self._stopped_at = 0.0
        self._calling = False
        self._rest = Rest(None)
        self._over = 0
        self._idle: tuple[int, float] = (-1, 0.0)

    def stop(self, reason: StopReason) -> None:
        """Cancel the run's code; the first reason stands, except that a loss beats them all."""
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
            self._stopped_at = asyncio.get_running_loop().time()
        self._cancel()

    @cached_property
    def turn(self) -> TurnRow | None:
        """What the run answers, where that was said in a session and people see the answer there.

        None for any other run.
        """
        if not self._function.is_turn or self.claim.unreadable is not None:
            return None
        return turn_of(self.claim.fence.run_id, self.claim.input_json)

    async def show(
        self, showings: Showings, cancel: Callable[[str], Awaitable[None]]
    ) -> Showing | None:
        """Open the session of a run that is a turn, and return what people see of this execution.

        `cancel` is called if somebody cancels it there. Raises as `Showings.open`.
        """
        turn = self.turn
        assert turn is not None
        self._showing = await showings.open(self.claim.fence, turn, lambda: cancel(turn.run_id))
        return self._showing

    async def suspend(self) -> None:
        """Show that the run waits for somebody, where people watch. Raises `LeaseLost`."""
        if self._showing is not None:
            await self._showing.suspend()

    async def leave(self) -> None:
        """Let go of the session; the run stays open there."""
        if self._showing is not None:
            await self._showing.close()

    @property
    def counts(self) -> tuple[int, int]:
        """How many operations were executed so far, and how many replayed."""
        performer = self._performer
        return (0, 0) if performer is None else (performer.executed, performer.replayed)

    def tell(self) -> None:
        """Let what waits for news from outside look whether there is any."""
        if self._performer is not None:
            self._performer.activity.tell()

    def late(self, now: float) -> bool:
        """Return whether the run has to have ended by now; wall seconds, UTC."""
        deadline_at = self.claim.deadline_at
        return deadline_at is not None and now >= deadline_at

    def overstays(self) -> bool:
        """Return whether code that was told to end goes on for longer than it may clean up."""
        if self.reason not in {StopReason.CANCELLED, StopReason.DEADLINE}:
            return False
        return asyncio.get_running_loop().time() - self._stopped_at > _CLEANUP_SECONDS

    def idles(self, clock: Clock, seconds: float, *, at_once: bool) -> bool:
        """Return whether the run has done nothing but wait for some seconds, and will for as many.

        Called again and again: the seconds count from the first call that sees it idle. `at_once`
        says that they need not have passed.
        """
        idle = None if self._performer is None else self._performer.activity.idle()
        if idle is None or self.reason is not None or not self._calling:
            self._idle = (-1, 0.0)
            return False
        turns, self._rest = idle
        self._over = self._waits_over
        now = clock.monotonic()
        if self._idle[0] != turns:
            # Its code may be on its way from one task to another, and no look can tell.
            self._idle = (turns, now)
            return False
        if self._rest.awaits and self._showing is not None:
            seconds = 0.0  # people who watch are to see at once that it is their turn
        until = self._rest.until
        long = until is None or until - clock.now() > (0.0 if at_once else seconds)
        return long and (at_once or now - self._idle[1] >= seconds)

    def rest(self, now: float) -> Rest:
        """Return what the run waits for that is put away because it only waits; `now` is wall time.

        Code that takes its time to stop may have taken what it waited for: it then waits for none.
        """
        return self._rest if self._over == self._waits_over else Rest(now)

    @property
    def _waits_over(self) -> int:
        return 0 if self._performer is None else self._performer.activity.over

    def drain(self, reason: StopReason = StopReason.CLOSING) -> None:
        """Let operations under way end and be recorded, then stop the run's code to go on later."""
        if self.reason is None:
            self.reason = reason
        if self._performer is not None:
            self._performer.activity.stop(self._cancel)

    def _cancel(self) -> None:
        # Only the code is cancelled, and not what reads its journal or writes how it ended. A
        # task that is cancelled before its first step would not even clean up.
        if self.task is not None and self._performer is not None and self._calling:
            self._performer.activity.cancelled = True
            self.task.cancel()

    async def run(self, performer: Performer) -> RunEnd | None:
        """Call the run function to its end and return how it ended.

        Returns None when this worker may write nothing about it: it lost the run, or it closes
        and gives the run back. Raises the `StorageError` of a store that refused an operation.
        """
        self._performer = performer
        performer.in_turn = self._function.is_turn
        end = self._stopped() if self.reason is not None else await self._call_to_end(performer)
        if performer.activity.cancelled:
            # Code that is told to stop may be told once more on its way out.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        await performer.activity.settle()
        if performer.tenure.lost or self.reason is StopReason.LOST:
            return None
        refused = performer.tenure.refused
        # What cannot be read is not mended by trying again.
        if refused is not None and not isinstance(refused, KeyUnavailable | StorageCorrupt):
            raise refused
        parked = performer.tenure.parked or refused
        if parked is not None:
            if self.reason in {StopReason.CANCELLED, StopReason.DEADLINE}:
                return self._stopped()
            if isinstance(parked, ReplayMismatch):
                await explain(performer.store, parked)
            return _ended(RunState.NEEDS_ATTENTION, parked)
        if self.reason in _GOES_ON and (
            performer.activity.cancelled or performer.activity.interrupted
        ):
            # Cut short, the code came to an end that is none: the run goes on elsewhere.
            return None
        if end is not None and end.state is RunState.COMPLETED:
            return await self._confirmed(end, performer)
        return end

    async def _confirmed(self, end: RunEnd, performer: Performer) -> RunEnd | None:
        """Return an end, or what the run waits for instead, because it cannot be over yet."""
        try:
            why = await performer.unfinished()
        except LeaseLost:
            return None
        return end if why is None else _ended(RunState.NEEDS_ATTENTION, why)

    async def _call_to_end(self, performer: Performer) -> RunEnd | None:
        self._calling = True
        performer.activity.root = asyncio.current_task()
        try:
            return await self._call(performer)
        except asyncio.CancelledError:
            return self._stopped()
        except RunParked as parked:
            performer.tenure.park(parked.cause)
            return None
        except (LeaseLost, RunStopped):
            return None
        except BaseExceptionGroup as group:
            signalled = group.subgroup((LeaseLost, RunStopped)) is not None
            return None if signalled else _ended(RunState.FAILED, group)
        except BaseException as error:
            # A person's interrupt reaches the main thread; elsewhere the run's own code raised it.
            here = threading.current_thread()
            if isinstance(error, KeyboardInterrupt) and here is threading.main_thread():
                raise
            # Nothing can be awaited while a coroutine is closed; code may raise the same by itself.
            if isinstance(error, GeneratorExit) and asyncio.current_task() is not self.task:
                raise
            # What is not registered here is for a person to register.
            missing = isinstance(error, MissingHandler)
            return _ended(RunState.NEEDS_ATTENTION if missing else RunState.FAILED, error)
        finally:
            self._calling = False

    async def _call(self, performer: Performer) -> RunEnd:
        context = Context(performer, self.claim.started_at)
        context.enter()
        codec, function = performer.codec, self._function.function
        try:
            value = codec.decode(self.claim.input_json, what="input", function=function)
        except InvalidPayload as error:
            # For one who knows the class that it is of.
            raise RunParked(error) from error
        result = await self._function.call(context, value)
        output_json = codec.encode(result, what="result", function=function)
        return RunEnd(RunState.COMPLETED, output_json=output_json)

    def _stopped(self) -> RunEnd | None:
        match self.reason:
            case StopReason.CANCELLED:
                return RunEnd(RunState.CANCELLED)
            case StopReason.CLOSING | StopReason.WAITING | StopReason.LOST:
                return None
            case StopReason.DEADLINE:
                return self._too_late()
            case None if self._cancelled_by_others():
                # By whoever shuts the loop down without closing the App, or by anybody else: the
                # run goes on later.
                self.reason = StopReason.CLOSING
                return None
            case None:
                problem = RunProblem("CancelledError", "CancelledError", "the run cancelled itself")
                return RunEnd(RunState.FAILED, problem=problem)

    def _too_late(self) -> RunEnd:
        return _ended(RunState.FAILED, DeadlineExceeded(self.claim.fence.run_id))

    def _cancelled_by_others(self) -> bool:
        # Nobody can tell them from code that cancels its own task, which would do so for ever.
        cancelled = self.task is not None and self.task.cancelling() > 0
        return cancelled and self.given_back < MOST_GIVEN_BACK - 1


def _ended(state: RunState, error: BaseException) -> RunEnd:
    failure = failure_of(error)
    where = _traceback(error) if state is RunState.FAILED else ""
    problem = RunProblem(failure.error_name, failure.type_name, failure.message, where)
    return RunEnd(state, problem=problem, cause=error)


def _traceback(error: BaseException) -> str:
    text = printable("".join(traceback.format_exception(error)))
    return text[-_TRACEBACK_CHARACTERS:]


def tell(run_id: str, end: RunEnd) -> None:
    """Write to the log how an execution ended."""
    message = "" if end.problem is None else f": {end.problem.type_name}: {end.problem.message}"
    match end.state:
        case RunState.FAILED:
            log.error("run %s: failed%s", run_id, message, exc_info=end.cause)
        case RunState.NEEDS_ATTENTION:
            log.error("run %s: needs attention%s", run_id, message)
        case RunState.PENDING:
            log.info("run %s: goes on, since the effect in doubt was settled meanwhile", run_id)
        case _:
            log.info("run %s: %s", run_id, end.state.value)
