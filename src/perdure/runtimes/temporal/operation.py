from __future__ import annotations

from temporalio import workflow
from temporalio.common import RawValue

from perdure.errors import InvalidPayload, JournalError
from perdure.runtimes.temporal.activity import have_performed
from perdure.runtimes.temporal.answer import refusal
from perdure.runtimes.temporal.names import PERDURE, ZIGAI, Names
from perdure.runtimes.temporal.payload import document_of
from perdure.runtimes.temporal.request import OperationRequest, parse_request


# Nothing in here asks a clock or draws anything, and importing it anew would cost each worker more
# than an operation does.
@workflow.defn(name=PERDURE.workflow, sandboxed=False)
class Operation:
    """One operation: a workflow that has one activity perform it, and returns its record."""

    @workflow.run
    async def run(self, argument: RawValue) -> RawValue:
        """Return the record of the operation that a request asks for."""
        return await _operate(argument, PERDURE)


@workflow.defn(name=ZIGAI.workflow, sandboxed=False)
class ForeignOperation:
    """The same, under the names that other programs know."""

    @workflow.run
    async def run(self, argument: RawValue) -> RawValue:
        """Return the record of the operation that a request asks for."""
        return await _operate(argument, ZIGAI)


async def _operate(argument: RawValue, names: Names) -> RawValue:
    try:
        request = parse_request(document_of(argument))
        _check_names(request, names)
    except JournalError as error:
        # Any other exception would have the server ask for the same again, for ever.
        raise refusal(error) from error
    return await have_performed(names, request.invocation, request.options)


def _check_names(request: OperationRequest, names: Names) -> None:
    if request.names != names:
        raise InvalidPayload(
            f"the request is for {request.names.workflow} with {request.names.activity}, and was"
            f" sent to {names.workflow}, which has {names.activity}"
        )
    key = request.invocation.stable_key
    if workflow.info().workflow_id != key:
        raise InvalidPayload(
            f"the request is for operation {key}, and was sent to another workflow,"
            f" {workflow.info().workflow_id}"
        )
