from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.engine.dispatch import Driver, Rested
from perdure.errors import InvalidPayload, StorageError, UnknownRun
from perdure.observe import log
from perdure.runtimes.temporal.answer import refusal
from perdure.runtimes.temporal.heartbeats import heartbeats
from perdure.runtimes.temporal.run_documents import (
    ACTIVITY,
    RunRequest,
    request_of,
    rested_value,
)

_LONGEST_PAUSE_SECONDS: Final = 10.0
_MOST_STRANGE: Final = 20


def drive_activity(
    driver: Driver, closing: Callable[[], bool], ended: Callable[[str], None]
) -> Callable[[RawValue], Awaitable[RawValue]]:
    """Return the activity that executes runs with a driver.

    Once this worker is `closing`, what it does not execute to its end is for another one at once.
    `ended` is called with the id of each run that has.
    """

    @activity.defn(name=ACTIVITY)
    async def drive(argument: RawValue) -> RawValue:
        try:
            request = request_of(argument)
            async with heartbeats():
                if request.cancel:
                    await driver.cancel(request.run_id)
                rested = await _driven(driver, request)
        except InvalidPayload as error:
            raise refusal(error) from error
        except UnknownRun as error:
            raise _strange(error) from error
        except StorageError as error:
            raise ApplicationError(str(error), type=type(error).__name__) from error
        if rested is None:
            raise _later(closing=closing())
        if rested.state.ended:
            ended(request.run_id)
        return rested_value(rested)

    return drive


async def _driven(driver: Driver, request: RunRequest) -> Rested | None:
    while True:
        try:
            return await driver.drive(request.run_id)
        except asyncio.CancelledError:
            why = activity.cancellation_details()
            if why is None or not why.cancel_requested:
                # Another attempt waits for this execution, or takes the run over.
                raise
            await driver.cancel(request.run_id)


def _strange(error: UnknownRun) -> ApplicationError:
    """Return what a run fails with that is not in this store, once others had time to know it."""
    attempt, queue = activity.info().attempt, activity.info().task_queue
    message = (
        f"{error}: it was deleted since, or an App with another store has the task queue"
        f" {queue}, which it may not; give each store a task_queue of its own"
    )
    if attempt == 1:
        log.warning("%s", message)
    return ApplicationError(
        message,
        type=type(error).__name__,
        non_retryable=attempt >= _MOST_STRANGE,
        category=ApplicationErrorCategory.BENIGN,
    )


def _later(*, closing: bool) -> ApplicationError:
    """Return what has the server ask again; tries leave nothing in the history."""
    seconds = 0.1 if closing else min(float(activity.info().attempt), _LONGEST_PAUSE_SECONDS)
    return ApplicationError(
        "the run cannot be executed here and now",
        type="NotNow",
        next_retry_delay=timedelta(seconds=seconds),
        category=ApplicationErrorCategory.BENIGN,
    )
