from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from perdure.journal import payloads as wire


class _HeaderArguments(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sensitive: bool = False


class _ToolArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `encode_tool_request`; what is not given is empty, zero or false."""

    call: wire.ToolCall
    arguments_json: str
    provider_details: msgspec.Raw = wire.NO_DETAILS
    messages_json: str = '{"version":2,"messages":[]}'
    usage: wire.RunUsage = wire.RunUsage()
    model_requests: int = 0
    capabilities: wire.Capabilities = wire.Capabilities()
    retry_number: int = 0
    approved: bool = False


class _ApprovalArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `encode_approval_request`."""

    call: wire.ToolCall
    execution: wire.Execution
    arguments_json: str
    proposed: wire.Decision
    provider_details: msgspec.Raw = wire.NO_DETAILS


class _McpArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `encode_mcp_request`, with the client that the vectors were made with."""

    method: str
    params_json: str
    routing_name: str | None = None
    headers: tuple[wire.Header, ...] = ()
    metadata: wire.McpMetadata = wire.McpMetadata()
    client_name: str = "zigai"
    client_version: str = "0.1.0"
    capabilities_json: str = "{}"
    max_round_trips: int = 16
    deliver_events: bool = False


def _sensitive_header(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_HeaderArguments)
    header = wire.Header(arguments.name, "", arguments.sensitive)
    return msgspec.json.encode(header.authenticates())


def _with_details(call: wire.ToolCall, details: msgspec.Raw) -> wire.ToolCall:
    if details == wire.NO_DETAILS:
        return call
    provider = msgspec.structs.replace(call.provider, provider_details=details)
    return msgspec.structs.replace(call, provider=provider)


def _encode_tool_request(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_ToolArguments)
    request = wire.ToolRequest(
        call=_with_details(arguments.call, arguments.provider_details),
        arguments_json=arguments.arguments_json,
        messages=wire.parse_history(arguments.messages_json.encode()),
        usage=arguments.usage,
        model_requests=arguments.model_requests,
        capabilities=arguments.capabilities,
        retry_number=arguments.retry_number,
        approved=arguments.approved,
    )
    return wire.encode_tool_request(request)


def _encode_approval_request(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_ApprovalArguments)
    request = wire.ApprovalRequest(
        call=_with_details(arguments.call, arguments.provider_details),
        execution=arguments.execution,
        arguments_json=arguments.arguments_json,
        proposed=arguments.proposed,
    )
    return wire.encode_approval_request(request)


def _encode_mcp_request(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_McpArguments)
    return wire.encode_mcp_request(wire.McpRequest(**msgspec.structs.asdict(arguments)))


def _encode(kind: type[Any], encode: Callable[[Any], bytes]) -> Callable[[bytes], bytes]:
    """Return the function of a kind whose arguments are the members of its value."""
    return lambda data: encode(msgspec.json.decode(data, type=kind))


def _again(
    parse: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> Callable[[bytes], bytes]:
    """Return the function of a kind that is read, and written as it was understood."""
    return lambda data: encode(parse(data))


PAYLOADS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "sensitive_header": _sensitive_header,
    "history": _again(wire.parse_history, wire.encode_history),
    "model_request": _again(wire.parse_model_request, wire.encode_model_request),
    "model_response": _again(wire.parse_model_response, wire.encode_model_response),
    "tool_request": _again(
        partial(wire.parse_tool_request, bare_details=False), wire.encode_tool_request
    ),
    "encode_tool_request": _encode_tool_request,
    "tool_response": _again(wire.parse_tool_response, wire.encode_tool_response),
    "mcp_request": _again(wire.parse_mcp_request, wire.encode_mcp_request),
    "encode_mcp_request": _encode_mcp_request,
    "mcp_response": _again(wire.parse_mcp_response, wire.encode_mcp_response),
    "event_request": _again(wire.parse_event_request, wire.encode_event_request),
    "encode_event_request": _encode(wire.EventRequest, wire.encode_event_request),
    "retry_request": _again(wire.parse_retry_request, wire.encode_retry_request),
    "encode_retry_request": _encode(wire.RetryRequest, wire.encode_retry_request),
    "approval_request": _again(
        partial(wire.parse_approval_request, bare_details=False), wire.encode_approval_request
    ),
    "encode_approval_request": _encode_approval_request,
    "approval_response": _again(wire.parse_approval_response, wire.encode_approval_response),
    "paused_state": _again(wire.parse_paused_state, wire.encode_paused_state),
    "resume_decisions": _again(wire.parse_resume_decisions, wire.encode_resume_decisions),
}
"""Each kind of payload document, and the function that returns its canonical form or refuses it."""
