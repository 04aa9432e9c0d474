from __future__ import annotations

import asyncio
import enum
from typing import Any

from perdure.canonical import decode, encode
from perdure.context import Context
from perdure.engine.registry import RunFunction
from perdure.engine.store import ClaimedRun, RunEnd, RunProblem, RunState
from perdure.errors import LeaseLost, RunParked
from perdure.journal.failures import failure_of
from perdure.perform import Performer


class StopReason(enum.Enum):
    """Why a worker stops the code of a run."""

    CANCELLED = "cancelled"
    CLOSING = "closing"
    LOST = "lost"


class Execution:
    """One execution of a run by this worker, from its claim to its end."""

    def __init__(self, claim: ClaimedRun, function: RunFunction) -> None:
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        self.reason: StopReason | None = None
        self._function = function
        self._calling = False

    def stop(self, reason: StopReason) -> None:
        """Cancel the run's code; the first reason stands, except that a loss beats them all."""
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
        # Only the code is cancelled, and not what reads its journal or writes how it ended. A
        # task that is cancelled before its first step would not even clean up.
        if self.task is not None and self._calling:
            self.task.cancel()

    async def run(self, performer: Performer) -> RunEnd | None:
        """Call the run function to its end and return how it ended.

        Returns None when this worker may write nothing about it: it lost the run, or it closes
        and gives the run back. Raises the `StorageError` of a store that refused an operation.
        """
        end = self._stopped() if self.reason is not None else await self._call_to_end(performer)
        await performer.settle()
        if performer.lost or self.reason is StopReason.LOST:
            return None
        if performer.refused is not None:
            raise performer.refused
        if performer.parked is not None:
            if self.reason is StopReason.CANCELLED:
                return RunEnd(RunState.CANCELLED)
            return _ended(RunState.NEEDS_ATTENTION, performer.parked)
        if self.reason is StopReason.CLOSING and end is not None and end.state is RunState.FAILED:
            # Nobody can tell what failed by itself from what failed because it was cut short.
            return None
        return end

    async def _call_to_end(self, performer: Performer) -> RunEnd | None:
        self._calling = True
        try:
            return await self._call(performer)
        except asyncio.CancelledError:
            return self._stopped()
        except RunParked as parked:
            performer.park(parked.cause)
            return None
        except LeaseLost:
            return None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseExceptionGroup as group:
            return None if _holds(group, LeaseLost) else _ended(RunState.FAILED, group)
        except BaseException as error:  # noqa: BLE001 - whatever a run raises is how it ends
            return _ended(RunState.FAILED, error)
        finally:
            self._calling = False

    async def _call(self, performer: Performer) -> RunEnd:
        context = Context(performer, self.claim.started_at)
        context.enter()
        value = decode(self.claim.input_json)
        result = await self._function.call(context, value)
        return RunEnd(RunState.COMPLETED, output_json=encode(result, what="result"))

    def _stopped(self) -> RunEnd | None:
        match self.reason:
            case StopReason.CANCELLED:
                return RunEnd(RunState.CANCELLED)
            case StopReason.CLOSING | StopReason.LOST:
                return None
            case None if self.task is not None and self.task.cancelling():
                # By whoever shuts the loop down without closing the App: the run goes on later.
                return None
            case None:
                problem = RunProblem("CancelledError", "CancelledError", "the run cancelled itself")
                return RunEnd(RunState.FAILED, problem=problem)


def _ended(state: RunState, error: BaseException) -> RunEnd:
    failure = failure_of(error)
    problem = RunProblem(failure.error_name, failure.type_name, failure.message)
    return RunEnd(state, problem=problem)


def _holds(group: BaseExceptionGroup[Any], kind: type[BaseException]) -> bool:
    return group.subgroup(kind) is not None
