from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perdure.errors import (
    InvalidApprovalRequest,
    InvalidApprovalResponse,
    InvalidDocument,
    InvalidEventRequest,
    InvalidMcpRequest,
    InvalidMcpResponse,
    InvalidModelRequest,
    InvalidModelResponse,
    InvalidRetryRequest,
    InvalidToolRequest,
    InvalidToolResponse,
)
from perdure.journal.invocation import OperationKind
from perdure.journal.payloads import approval, event, mcp, model, retry, tool
from perdure.journal.payloads.messages import ResponseMessage


def _empty(_: object) -> bytes:
    return b"{}"


def _nothing(_: object) -> None:
    return None


@dataclass(frozen=True)
class Exchange:
    """A request that an operation may be, and its response, with how both are written and read.

    Without a `response` type nothing is answered: whatever is returned is ignored.
    """

    request: type
    write_request: Callable[[Any], bytes]
    read_request: Callable[[bytes], Any]
    invalid_request: type[InvalidDocument]
    response: type | None = None
    write_response: Callable[[Any], bytes] = _empty
    read_response: Callable[[bytes], Any] = _nothing
    invalid_response: type[InvalidDocument] = InvalidDocument

    def response_of(self, answer: object) -> bytes:
        """Return the document of an answer; raise `invalid_response`, also for another type."""
        if self.response is not None and not isinstance(answer, self.response):
            raise self.invalid_response(
                f"a handler of a {self.request.__name__} returns a {self.response.__name__}, a"
                f" Failure or a Suspended, and not a {type(answer).__name__}"
            )
        return self.write_response(answer)


_MODEL: Final = Exchange(
    model.ModelRequest,
    model.encode_model_request,
    model.parse_model_request,
    InvalidModelRequest,
    ResponseMessage,
    model.encode_model_response,
    model.parse_model_response,
    InvalidModelResponse,
)
_TOOL: Final = Exchange(
    tool.ToolRequest,
    tool.encode_tool_request,
    tool.parse_tool_request,
    InvalidToolRequest,
    tool.ToolResponse,
    tool.encode_tool_response,
    tool.parse_tool_response,
    InvalidToolResponse,
)
_MCP: Final = Exchange(
    mcp.McpRequest,
    mcp.encode_mcp_request,
    mcp.parse_mcp_request,
    InvalidMcpRequest,
    mcp.McpResponse,
    mcp.encode_mcp_response,
    mcp.parse_mcp_response,
    InvalidMcpResponse,
)
_EVENT: Final = Exchange(
    event.EventRequest, event.encode_event_request, event.parse_event_request, InvalidEventRequest
)
_RETRY: Final = Exchange(
    retry.RetryRequest, retry.encode_retry_request, retry.parse_retry_request, InvalidRetryRequest
)
_APPROVAL: Final = Exchange(
    approval.ApprovalRequest,
    approval.encode_approval_request,
    approval.parse_approval_request,
    InvalidApprovalRequest,
    approval.ApprovalResponse,
    approval.encode_approval_response,
    approval.parse_approval_response,
    InvalidApprovalResponse,
)

EXCHANGES: Final[Mapping[OperationKind, tuple[Exchange, ...]]] = {
    OperationKind.MODEL_REQUEST: (_MODEL,),
    OperationKind.MODEL_STREAM: (_MODEL,),
    OperationKind.TOOL_CALL: (_TOOL,),
    # An agent calls the tool of a server as it calls any tool.
    OperationKind.MCP_REQUEST: (_MCP, _TOOL),
    OperationKind.EVENT_DELIVERY: (_EVENT,),
    OperationKind.RETRY_DELAY: (_RETRY,),
    OperationKind.APPROVAL_RESUME: (_APPROVAL,),
}
"""What the operations of each kind may be."""


class _Kind(msgspec.Struct):
    payload_kind: str = ""


_kinds: Final = msgspec.json.Decoder(_Kind)


def exchange_of(kind: OperationKind, request: object) -> Exchange:
    """Return the exchange of a kind that a request belongs to.

    Raises the invalid request error of the kind for a value of another type.
    """
    for exchange in EXCHANGES[kind]:
        if isinstance(request, exchange.request):
            return exchange
    taken = " or a ".join(exchange.request.__name__ for exchange in EXCHANGES[kind])
    raise EXCHANGES[kind][0].invalid_request(
        f"a {kind} asks with a {taken}, and not with a {type(request).__name__}"
    )


def exchange_in(kind: OperationKind, input_json: bytes) -> Exchange:
    """Return the exchange of a kind that an input is meant for, well formed or not."""
    first, *others = EXCHANGES[kind]
    if others:
        try:
            payload_kind = _kinds.decode(input_json).payload_kind
        except (msgspec.MsgspecError, ValueError):
            payload_kind = ""
        if payload_kind == "tool_call":
            return others[0]
    return first
