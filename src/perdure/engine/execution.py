from __future__ import annotations

import asyncio
import enum
from typing import Any

from perdure.canonical import decode, encode
from perdure.context import Context
from perdure.engine.registry import RunFunction
from perdure.engine.store import ClaimedRun, RunEnd, RunProblem, RunState
from perdure.errors import LeaseLost, RunParked
from perdure.perform import Performer, failure_of


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

    def stop(self, reason: StopReason) -> None:
        """Cancel the run's code; the first reason stands, except that a loss beats them all."""
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
        if self.task is not None:
            self.task.cancel()

    async def run(self, performer: Performer) -> RunEnd | None:
        """Call the run function to its end and return how it ended.

        Returns None when this worker may write nothing about it: it lost the run, or it closes
        and gives the run back.
        """
        try:
            end = await self._call(performer)
        except asyncio.CancelledError:
            end = self._stopped()
        except RunParked as parked:
            end = _ended(RunState.NEEDS_ATTENTION, parked.cause)
        except LeaseLost:
            end = None
        except Exception as error:  # noqa: BLE001 - whatever a run raises is how it ends
            end = _ended(RunState.FAILED, error)
        except BaseExceptionGroup as group:
            end = None if _holds(group, LeaseLost) else _ended(RunState.FAILED, group)
        if performer.lost or self.reason is StopReason.LOST:
            return None
        if performer.parked is not None and self.reason is None:
            end = _ended(RunState.NEEDS_ATTENTION, performer.parked)
        return end

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
            case None:
                problem = RunProblem("CancelledError", "CancelledError", "the run cancelled itself")
                return RunEnd(RunState.FAILED, problem=problem)


def _ended(state: RunState, error: BaseException) -> RunEnd:
    failure = failure_of(error)
    problem = RunProblem(failure.error_name, failure.type_name, failure.message)
    return RunEnd(state, problem=problem)


def _holds(group: BaseExceptionGroup[Any], kind: type[BaseException]) -> bool:
    return group.subgroup(kind) is not None
