from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from perdure.attempt import make_attempt
from perdure.canonical import RECORD_LIMIT_BYTES
from perdure.declaration import Reported
from perdure.errors import JournalError, MissingHandler, PerdureError
from perdure.journal.failures import bounded
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Record, check_outcome
from perdure.runtimes.temporal.answer import refusal
from perdure.runtimes.temporal.heartbeats import heartbeats
from perdure.runtimes.temporal.names import PERDURE, ZIGAI, Names
from perdure.runtimes.temporal.operation import ForeignOperation, Operation
from perdure.runtimes.temporal.payload import (
    carried_bytes,
    check_answerable,
    invocation_of,
    record_value,
)

Execute = Callable[[RawValue], Awaitable[RawValue]]

_BUILD_ID: Final = "perdure"
_PASSED_THROUGH: Final = ("msgspec", "perdure")


def operation_worker(
    client: Client,
    task_queue: str,
    handlers: Handlers,
    *,
    record_limit_bytes: int = RECORD_LIMIT_BYTES,
    workflows: Sequence[type] = (),
    activities: Sequence[Callable[..., Any]] = (),
    passthrough_modules: Sequence[str] = (),
    **settings: Any,
) -> Worker:
    """Return a worker that executes operations with the worker functions of this process.

    It serves operations under the names of this library and under those of other programs, and
    beside them `workflows` and `activities` of your own. Your workflows run in the sandbox of
    `workflow_runner(*passthrough_modules)`, and an error of perdure that leaves one fails it.
    `settings` are further arguments of `temporalio.worker.Worker`.

    What a worker function raises is a recorded failure, and so is an outcome that is larger than
    `record_limit_bytes` or than Temporal carries. An operation that no function is registered for
    is left to another attempt, since another worker may know it.
    """
    if "deployment_config" not in settings:
        # Without one, the code of all modules is hashed here, which takes seconds.
        settings.setdefault("build_id", _BUILD_ID)
    settings.setdefault("workflow_failure_exception_types", [PerdureError])
    settings.setdefault("workflow_runner", workflow_runner(*passthrough_modules))
    limit_bytes = carried_bytes(client.data_converter, record_limit_bytes)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[Operation, ForeignOperation, *workflows],
        activities=[*operation_activities(handlers, limit_bytes), *activities],
        **settings,
    )


def workflow_runner(*passthrough_modules: str) -> SandboxedWorkflowRunner:
    """Return the SDK's sandbox for workflows that use `workflow_runtime`.

    It shares `perdure` and `msgspec` with the process instead of importing them for each workflow:
    msgspec is compiled and does not bear it. What a workflow needs of perdure asks no clock, draws
    nothing and keeps nothing between calls. `passthrough_modules` names further ones.
    """
    restrictions = SandboxRestrictions.default.with_passthrough_modules(
        *_PASSED_THROUGH, *passthrough_modules
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


def operation_activities(handlers: Handlers, limit_bytes: int) -> list[Execute]:
    """Return the activity that performs operations, once for each of its names."""
    return [_activity(names, handlers, limit_bytes) for names in (PERDURE, ZIGAI)]


def _activity(names: Names, handlers: Handlers, limit_bytes: int) -> Execute:
    @activity.defn(name=names.activity)
    async def execute(argument: RawValue) -> RawValue:
        async with heartbeats():
            return await _perform(argument, handlers, limit_bytes)

    return execute


async def _perform(argument: RawValue, handlers: Handlers, limit_bytes: int) -> RawValue:
    """Return the record of an invocation, for which its worker function is called."""
    try:
        invocation = invocation_of(argument)
        check_answerable(invocation, limit_bytes)
        worker = handlers.lookup(invocation.kind, invocation.handler_id)
    except MissingHandler as error:
        raise ApplicationError(str(error), type=type(error).__name__) from error
    except JournalError as error:
        raise refusal(error) from error

    async def handler() -> Outcome | Reported:
        told: Outcome | Reported = await worker(invocation)
        outcome = told.outcome if isinstance(told, Reported) else told
        check_outcome(invocation.stable_key, outcome)
        return told

    attempt = await make_attempt(handler)
    return _answer(invocation, attempt.outcome, limit_bytes)


def _answer(invocation: Invocation, outcome: Outcome, limit_bytes: int) -> RawValue:
    """Return a record as it is carried, or that of the failure that says that it cannot be.

    The server would refuse it only after the handler has acted, and have it act again.
    """
    fitting = bounded(outcome, len(invocation.input_json))
    try:
        value = record_value(Record(invocation, fitting))
        size = len(value.payload.data)
        if size <= limit_bytes:
            return value
        message = f"the record has {size} bytes and {limit_bytes} are carried"
    except JournalError as error:
        message = str(error)
    failure = Failure("InvalidPayload", type_name="perdure.errors.InvalidPayload", message=message)
    return record_value(Record(invocation, failure))
