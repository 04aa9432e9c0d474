from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec
from temporalio.client import (
    Client,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import RawValue
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    TimeoutError,  # noqa: A004 - the name that the SDK has for it
)
from temporalio.service import RPCError

from perdure.canonical import check_size
from perdure.errors import JournalError, PerdureError
from perdure.ids import is_identifier
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Record, encode_record, parse_record
from perdure.runtimes.temporal.payload import (
    carried_bytes,
    check_answerable,
    document_of,
)
from perdure.runtimes.temporal.request import OperationRequest, parse_request
from perdure.runtimes.temporal.starting import start_operation
from perdure.sidecar.answers import Unavailable, UnusableAnswer
from perdure.sidecar.config import Limits
from perdure.sidecar.request import InvalidRequest

_Handle = WorkflowHandle[object, RawValue]

_text: Final = msgspec.json.Decoder(str)
_HEALTH_SECONDS: Final = 2.0


class TemporalAnswers:
    """Has operations performed as workflows, each under its stable key; `Answers` on Temporal."""

    def __init__(self, client: Client, limits: Limits, *, max_record_bytes: int) -> None:
        self._client = client
        self._limits = limits
        self._max_record_bytes = max_record_bytes

    async def begin(self, request: OperationRequest) -> TemporalPending:
        """Start the workflow of an operation, or find the one there is."""
        document = self._document(request)
        try:
            handle = await start_operation(
                self._client,
                request.names.workflow,
                document,
                key=request.invocation.stable_key,
                task_queue=request.task_queue,
            )
        except RPCError as error:
            raise Unavailable(f"{error.status.name}: {error.message}") from error
        return TemporalPending(handle, self._client, self._max_record_bytes)

    async def ready(self) -> bool:
        """Return whether Temporal answers."""
        timeout = timedelta(seconds=_HEALTH_SECONDS)
        try:
            return await self._client.service_client.check_health(timeout=timeout)
        except RPCError:
            return False

    def _document(self, request: OperationRequest) -> bytes:
        """Return what the workflow is started with, where Temporal can carry it and its record."""
        options = request.options
        if options.heartbeat_seconds is None:
            beat = min(self._limits.heartbeat_seconds, options.start_to_close_seconds)
            options = msgspec.structs.replace(options, heartbeat_seconds=beat)
        document = msgspec.structs.replace(request, options=options).encode()
        carried = carried_bytes(self._client.data_converter, self._max_record_bytes)
        try:
            check_size(document, what="the request", limit_bytes=carried)
            check_answerable(request.invocation, carried)
        except JournalError as error:
            raise InvalidRequest(str(error)) from error
        return document


class TemporalPending:
    """The one workflow of an operation."""

    def __init__(self, handle: _Handle, client: Client, max_record_bytes: int) -> None:
        self._handle = handle
        self._client = client
        self._max_record_bytes = max_record_bytes

    async def record(self) -> bytes:
        """Return the record that the workflow ended with, or that of its failure."""
        try:
            value = await self._handle.result()
        except WorkflowFailureError as error:
            failure = failure_of(error)
            return encode_record(Record(await self._invocation(), failure))
        except WorkflowContinuedAsNewError as error:
            raise UnusableAnswer("the workflow of the operation is another program's") from error
        except RPCError as error:
            raise Unavailable(f"{error.status.name}: {error.message}") from error
        except ApplicationError as error:  # out of a payload codec of this process
            raise UnusableAnswer(f"what came back cannot be read: {error.message}") from error
        return self._document(value)

    def _document(self, value: RawValue) -> bytes:
        try:
            document = _text.decode(document_of(value)).encode()
            parse_record(document)
        except (JournalError, msgspec.MsgspecError, UnicodeError) as error:
            raise UnusableAnswer(f"the operation came to no record: {error}") from error
        if len(document) > self._max_record_bytes:
            raise UnusableAnswer(f"the record has more than {self._max_record_bytes} bytes")
        return document

    async def _invocation(self) -> Invocation:
        """Return what the workflow was started for, which need not be what is asked for now."""
        try:
            first = await anext(aiter(self._handle.fetch_history_events(page_size=1)))
            payloads = first.workflow_execution_started_event_attributes.input.payloads
            (value,) = await self._client.data_converter.decode([*payloads], type_hints=[RawValue])
            return parse_request(document_of(value)).invocation
        except RPCError as error:
            raise Unavailable(f"{error.status.name}: {error.message}") from error
        except (PerdureError, ApplicationError, ValueError, StopAsyncIteration) as error:
            raise UnusableAnswer(
                "the operation failed, and its workflow was started by another program"
            ) from error


def failure_of(error: WorkflowFailureError) -> Failure:
    """Return the failure that an operation came to whose workflow failed."""
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    match cause:
        case ApplicationError():
            name = cause.type or ""
            name = name if is_identifier(name) else "OperationFailed"
            return Failure(name, retryable=not cause.non_retryable, message=cause.message)
        case TimeoutError():
            return Failure("OperationTimedOut", retryable=True, message=cause.message)
        case CancelledError():
            return Failure("OperationCancelled", message=cause.message)
        case TerminatedError():
            return Failure("OperationTerminated", message=cause.message)
        case _:
            return Failure("OperationFailed", message=str(cause))
