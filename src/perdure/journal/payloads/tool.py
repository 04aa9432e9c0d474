from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import force_setattr, replace

from perdure.canonical import reserialise
from perdure.errors import (
    InvalidPayload,
    InvalidToolRequest,
    InvalidToolResponse,
    UnsupportedToolWireVersion,
)
from perdure.journal.payloads.envelope import Envelope, Member, messages_member
from perdure.journal.payloads.exact import U64, Byte, Exact
from perdure.journal.payloads.messages import Message, RequestMessage
from perdure.journal.payloads.parts import ToolKind
from perdure.journal.payloads.usage import RunUsage

NO_DETAILS: Final = Raw(b"null")
"""What stands for the details of a provider that gave none."""


class CallProvider(Exact, frozen=True, kw_only=True):
    """What the provider said of a call; `provider_details` is any JSON, in canonical spelling."""

    id: str | None = None
    provider_name: str | None = None
    provider_details: Raw = NO_DETAILS

    def __post_init__(self) -> None:
        super().__post_init__()
        details = Raw(reserialise(bytes(self.provider_details)))
        force_setattr(self, "provider_details", details)


class ToolCall(Exact, frozen=True, kw_only=True):
    """A call of a tool; `arguments_json` is text that the model meant as JSON."""

    id: str
    name: str
    arguments_json: str
    tool_kind: ToolKind | None = None
    provider: CallProvider = CallProvider()
    thought_signature: str | None = None


class Capabilities(Exact, frozen=True, kw_only=True):
    """The capabilities that an agent has, and those that it has loaded."""

    available_ids: tuple[str, ...] = ()
    loaded_ids: tuple[str, ...] = ()


class ToolRequest(Exact, frozen=True, kw_only=True):
    """The input of a tool call: the call, and the run as the tool may look at it.

    `arguments_json` is what the tool is called with; it is not checked to be JSON. `retry_number`
    counts the failures of the tool so far.
    """

    call: ToolCall
    arguments_json: str
    messages: tuple[Message, ...] = ()
    usage: RunUsage = RunUsage()
    model_requests: U64 = 0
    capabilities: Capabilities = Capabilities()
    retry_number: U64 = 0
    approved: bool = False


class ToolResponse(Exact, frozen=True, kw_only=True):
    """The output of a tool call.

    `content` is text of any kind; bytes are text that is not Unicode. `follow_ups` are requests
    that the conversation goes on with.
    """

    content: str | bytes
    follow_ups: tuple[RequestMessage, ...] = ()


# --- the two spellings of a provider's details -------------------------------------------------


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    value: Raw


def _value_of(details: Raw) -> Raw | None:
    """Return what details of the shape `{"value": …}` hold, None for any other shape."""
    try:
        return msgspec.json.decode(details, type=_Wrapped).value
    except msgspec.ValidationError:
        return None


def _read_call(call: ToolCall, *, bare_details: bool) -> ToolCall:
    details = call.provider.provider_details
    value = _value_of(details)
    if value is not None:
        return replace(call, provider=replace(call.provider, provider_details=value))
    if not bare_details and details != NO_DETAILS:
        raise InvalidPayload('the provider_details of a call are not of the shape {"value": …}')
    return call


def _write_call(call: ToolCall) -> ToolCall:
    details = call.provider.provider_details
    if _value_of(details) is None:
        return call
    wrapped = Raw(b'{"value":' + bytes(details) + b"}")
    return replace(call, provider=replace(call.provider, provider_details=wrapped))


def call_member(*, bare_details: bool) -> Member:
    """Return the member of a call, whose details of a provider may be spelled in two ways.

    They are written as they are. `{"value": …}` is always read as what it holds, and is therefore
    written around details of that very shape; anything else is refused without `bare_details`.
    """

    def read(call: ToolCall) -> ToolCall:
        return _read_call(call, bare_details=bare_details)

    return Member("call", ToolCall, read, _write_call)


# --- documents ---------------------------------------------------------------------------------


def _read_content(content: str | list[int]) -> str | bytes:
    if isinstance(content, str):
        return content
    try:
        return bytes(content).decode()
    except UnicodeDecodeError:
        return bytes(content)


def _write_content(content: str | bytes) -> str | list[int]:
    settled = content if isinstance(content, str) else _read_content(list(content))
    return settled if isinstance(settled, str) else list(settled)


def _follow_ups(messages: Sequence[Message]) -> tuple[RequestMessage, ...]:
    requests = tuple(message for message in messages if isinstance(message, RequestMessage))
    if len(requests) < len(messages):
        raise InvalidPayload("a response stands among the follow-ups, which are requests")
    return requests


def _request(*, bare_details: bool) -> Envelope[ToolRequest]:
    return Envelope(
        ToolRequest,
        "the tool request",
        InvalidToolRequest,
        UnsupportedToolWireVersion,
        payload_kind="tool_call",
        members={
            "call": call_member(bare_details=bare_details),
            "messages": messages_member("messages_json"),
        },
    )


def _response() -> Envelope[ToolResponse]:
    history = messages_member("follow_up_history_json")

    def read(text: str) -> tuple[RequestMessage, ...]:
        return _follow_ups(history.read(text))

    def write(messages: tuple[RequestMessage, ...]) -> Any:
        return history.write(_follow_ups(messages))

    return Envelope(
        ToolResponse,
        "the tool response",
        InvalidToolResponse,
        UnsupportedToolWireVersion,
        members={
            "content": Member("content", str | list[Byte], _read_content, _write_content),
            "follow_ups": Member(history.name, str, read, write),
        },
    )


_REQUEST: Final = _request(bare_details=True)
_WRAPPED_REQUEST: Final = _request(bare_details=False)
_RESPONSE: Final = _response()


def encode_tool_request(request: ToolRequest) -> bytes:
    """Return the document of a tool request; raise `InvalidToolRequest`."""
    return _REQUEST.encode(request)


def parse_tool_request(data: bytes, *, bare_details: bool = True) -> ToolRequest:
    """Return the tool request of a document.

    The details of a provider are read in both spellings, and only wrapped in `{"value": …}`
    without `bare_details`. Raises `InvalidToolRequest` or `UnsupportedToolWireVersion`.
    """
    return (_REQUEST if bare_details else _WRAPPED_REQUEST).parse(data)


def encode_tool_response(response: ToolResponse) -> bytes:
    """Return the document of a tool response; raise `InvalidToolResponse`."""
    return _RESPONSE.encode(response)


def parse_tool_response(data: bytes) -> ToolResponse:
    """Return the tool response of a document.

    Raises `InvalidToolResponse` or `UnsupportedToolWireVersion`.
    """
    return _RESPONSE.parse(data)
