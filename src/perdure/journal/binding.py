from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

import msgspec

from perdure.errors import MissingHandler, RuntimeRecordMismatch
from perdure.ids import namespaced
from perdure.journal.budget import Meter
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Record, Success, check_outcome, success_of
from perdure.journal.runtime import Runtime

if TYPE_CHECKING:
    from perdure.journal.payloads import (
        ApprovalRequest,
        ApprovalResponse,
        EventRequest,
        McpRequest,
        McpResponse,
        ModelRequest,
        ResponseMessage,
        RetryRequest,
        ToolRequest,
        ToolResponse,
    )


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one runtime: the handler id of each kind and the namespace of the steps.

    A kind without a handler id cannot be executed. The empty namespace adds nothing. A `meter`
    holds the operations to the budget of their run.

    `execute` takes a document as it is. The methods called after a kind write the request, execute
    it and parse the response: they raise as `execute`, before anything is asked the error of a
    request that cannot be written (`InvalidToolRequest`, …), and the error of a recorded response
    that is none (`InvalidToolResponse`, …), now and on every replay.
    """

    run_id: str
    runtime: Runtime
    handler_ids: Mapping[OperationKind, str]
    namespace: str = ""
    meter: Meter | None = None

    def with_namespace(self, namespace: str) -> Binding:
        """Return the same binding with a namespace inside the one it has.

        Raises `InvalidInvocation` when the two together are not an identifier.
        """
        return msgspec.structs.replace(self, namespace=namespaced(self.namespace, namespace))

    async def execute(
        self, kind: OperationKind, step_id: str, sequence: int, input_json: bytes
    ) -> Success:
        """Execute one operation and return its success.

        Durable when it returns: the record, as the runtime promises.
        If it raises: `MissingHandler`, `InvalidInvocation`, `InvalidPayload` or `BudgetExceeded`
        (the runtime was not asked), `OperationFailed` or `OperationSuspended` (recorded),
        `RuntimeRecordMismatch` or an error of the record (the runtime broke its contract), or what
        the runtime raised.
        """
        invocation = self._invocation(kind, step_id, sequence, input_json)
        invocation.validate()
        record = await self._record_of(invocation)
        return success_of(invocation.stable_key, record.outcome)

    async def model_request(
        self, step_id: str, sequence: int, request: ModelRequest
    ) -> ResponseMessage:
        """Ask a model and return its response."""
        return await self._exchange(OperationKind.MODEL_REQUEST, step_id, sequence, request)

    async def model_stream(
        self, step_id: str, sequence: int, request: ModelRequest
    ) -> ResponseMessage:
        """Ask a model whose handler streams, and return its response once it is whole."""
        return await self._exchange(OperationKind.MODEL_STREAM, step_id, sequence, request)

    async def tool_call(self, step_id: str, sequence: int, request: ToolRequest) -> ToolResponse:
        """Call a tool and return its response."""
        return await self._exchange(OperationKind.TOOL_CALL, step_id, sequence, request)

    @overload
    async def mcp_request(
        self, step_id: str, sequence: int, request: McpRequest
    ) -> McpResponse: ...
    @overload
    async def mcp_request(
        self, step_id: str, sequence: int, request: ToolRequest
    ) -> ToolResponse: ...
    async def mcp_request(self, step_id: str, sequence: int, request: Any) -> Any:
        """Ask an MCP server, or call a tool of it as an agent does, and return the response."""
        return await self._exchange(OperationKind.MCP_REQUEST, step_id, sequence, request)

    async def event_delivery(self, step_id: str, sequence: int, request: EventRequest) -> None:
        """Deliver an event; what the handler answers is ignored."""
        await self._exchange(OperationKind.EVENT_DELIVERY, step_id, sequence, request)

    async def retry_delay(self, step_id: str, sequence: int, request: RetryRequest) -> None:
        """Wait before a retry; what the handler answers is ignored."""
        await self._exchange(OperationKind.RETRY_DELAY, step_id, sequence, request)

    async def approval_resume(
        self, step_id: str, sequence: int, request: ApprovalRequest
    ) -> ApprovalResponse:
        """Propose a decision and return the one that holds."""
        return await self._exchange(OperationKind.APPROVAL_RESUME, step_id, sequence, request)

    async def _exchange(
        self, kind: OperationKind, step_id: str, sequence: int, request: object
    ) -> Any:
        # Documents cost more at start-up than programs without them should pay.
        from perdure.journal.exchange import exchange_of

        exchange = exchange_of(kind, request)
        document = exchange.write_request(request)
        success = await self.execute(kind, step_id, sequence, document)
        return exchange.read_response(success.output_json)

    async def _record_of(self, invocation: Invocation) -> Record:
        if self.meter is None:
            record = await self.runtime.execute(invocation)
            check_record(record, invocation)
            return record
        key = invocation.stable_key
        with self.meter.admitted(key, invocation.kind):
            record = await self.runtime.execute(invocation)
            check_record(record, invocation)
            self.meter.count(key, invocation.kind, record.outcome)
        return record

    def _invocation(
        self, kind: OperationKind, step_id: str, sequence: int, input_json: bytes
    ) -> Invocation:
        handler_id = self.handler_ids.get(kind)
        if handler_id is None:
            known = ", ".join(sorted(self.handler_ids)) or "no kind"
            raise MissingHandler(
                f"run {self.run_id} has no handler id for {kind} (it has one for {known}): add it"
                " to the binding's handler_ids"
            )
        step_id = namespaced(self.namespace, step_id)
        return Invocation(self.run_id, step_id, sequence, kind, handler_id, input_json)


def check_record(record: Record, invocation: Invocation) -> None:
    """Check that a runtime answered an invocation with a valid record of it.

    Raises `RuntimeRecordMismatch`, or an error of the record.
    """
    if record.invocation == invocation:
        check_outcome(invocation.stable_key, record.outcome)
        return
    record.validate()
    differing = ", ".join(
        name
        for name in Invocation.__struct_fields__
        if getattr(record.invocation, name) != getattr(invocation, name)
    )
    raise RuntimeRecordMismatch(
        f"the runtime answered {invocation.stable_key} with a record that differs in {differing};"
        " the key was used for something else before, or the runtime mixed up two operations"
    )
