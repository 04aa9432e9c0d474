from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from perdure.journal.invocation import Invocation
from perdure.runtimes.temporal.names import Names
from perdure.runtimes.temporal.options import OperationOptions
from perdure.runtimes.temporal.payload import invocation_value


async def have_performed(
    names: Names,
    invocation: Invocation,
    options: OperationOptions,
    *,
    task_queue: str | None = None,
) -> RawValue:
    """Have a worker perform an operation as an activity of this workflow, and return its record.

    `task_queue` is where to ask for one, None for the queue of the workflow.
    """
    heartbeat = options.heartbeat_seconds
    return await workflow.execute_activity(
        names.activity,
        invocation_value(invocation),
        result_type=RawValue,
        task_queue=task_queue,
        activity_id=invocation.stable_key,
        start_to_close_timeout=timedelta(seconds=options.start_to_close_seconds),
        schedule_to_close_timeout=timedelta(seconds=options.schedule_to_close_seconds),
        heartbeat_timeout=None if heartbeat is None else timedelta(seconds=heartbeat),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=options.initial_interval_seconds),
            backoff_coefficient=options.backoff_coefficient,
            maximum_interval=timedelta(seconds=options.maximum_interval_seconds),
            maximum_attempts=options.maximum_attempts,
        ),
        # What a handler has done is recorded, although nobody wants it any more.
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
