from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from perdure.engine.dispatch import Rested
from perdure.engine.run_state import RunState
from perdure.errors import InvalidPayload
from perdure.runtimes.temporal.answer import refusal
from perdure.runtimes.temporal.run_documents import (
    ACTIVITY,
    WAKE,
    WORKFLOW,
    RunRequest,
    request_of,
    request_value,
    rested_of,
    rested_value,
)
from perdure.runtimes.temporal.search import STATE

_LONGEST_EXECUTION: Final = timedelta(days=365)
_LOOK_SECONDS: Final = 6 * 3600.0
"""How long a run waits at most until somebody looks at it, should a signal have been lost."""


# As the workflows of operations: it asks no clock and draws nothing. What it was given by others
# and cannot go on with ends it, and a look at the runs that wait begins it anew.
@workflow.defn(name=WORKFLOW, sandboxed=False, failure_exception_types=[TypeError, ValueError])
class RunWorkflow:
    """One run: an activity executes it until it rests, again and again until it has ended.

    While it waits there are a timer and this workflow, and no worker. What it does and did is in
    the store; the history has which worker had it when.
    """

    def __init__(self) -> None:
        self._woken = False
        self._shown: RunState | None = None

    @workflow.signal(name=WAKE)
    def wake(self) -> None:
        """Have the run executed: what it waits for may have come."""
        self._woken = True

    @workflow.run
    async def run(self, argument: RawValue) -> RawValue:
        """Return how the run ended."""
        try:
            request = request_of(argument)
        except InvalidPayload as error:
            raise refusal(error) from error
        self._searchable = request.searchable
        while True:
            self._woken = False
            self._show(RunState.RUNNING)
            try:
                rested = await self._drive(request)
            except (asyncio.CancelledError, ActivityError) as error:
                if _is_final(error) or not (is_cancelled_exception(error) or _is_cancelled()):
                    raise
                # Between two attempts, or just as one was over: the run has not heard of it. Nor is
                # an attempt that failed then followed by another one.
                request = msgspec.structs.replace(request, cancel=True)
                continue
            self._show(rested.state)
            # Whoever resumes it may do so while this ends.
            if rested.state.ended and not self._woken:
                return self._end(request, rested)
            if await self._wait(rested):
                request = msgspec.structs.replace(request, cancel=True)
            elif workflow.info().is_continue_as_new_suggested():
                # It begins with an attempt, whatever has woken this one.
                workflow.continue_as_new(request_value(request))

    async def _drive(self, request: RunRequest) -> Rested:
        answer = await workflow.execute_activity(
            ACTIVITY,
            request_value(request),
            result_type=RawValue,
            start_to_close_timeout=_LONGEST_EXECUTION,
            heartbeat_timeout=timedelta(seconds=request.heartbeat_seconds),
            retry_policy=RetryPolicy(backoff_coefficient=1.0),
            # The run goes on until it is in the store that it was cancelled, or came to its end.
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return rested_of(answer)

    async def _wait(self, rested: Rested) -> bool:
        """Wait until the run may go on; return whether its end was asked for instead."""
        seconds = rested.seconds
        seconds = _LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS)
        try:
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(lambda: self._woken, timeout=seconds)
        except asyncio.CancelledError:
            return True
        return False

    def _end(self, request: RunRequest, rested: Rested) -> RawValue:
        if rested.state is RunState.FAILED:
            # What it says may be of the run's input, and is in the store.
            raise ApplicationError(
                f"perdure show {request.run_id} tells why", type="RunFailed", non_retryable=True
            )
        if rested.state is RunState.CANCELLED and _is_cancelled():
            raise asyncio.CancelledError
        return rested_value(rested)

    def _show(self, state: RunState) -> None:
        if self._searchable and state is not self._shown:
            shown = STATE.value_set(state.value)
            workflow.upsert_search_attributes([shown])  # pyright: ignore[reportUnknownMemberType]
            self._shown = state


def _is_cancelled() -> bool:
    """Return whether somebody has cancelled this workflow."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_final(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(cause, ApplicationError) and cause.non_retryable
