from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.errors import InvalidPayload
from perdure.journal.payloads.content import TextContent
from perdure.journal.payloads.media import KINDS, AnyMedia, Media, Metadata
from perdure.journal.payloads.messages import Message, RequestMessage, ResponseMessage
from perdure.journal.payloads.parts import (
    Outcome,
    RequestPart,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from perdure.journal.payloads.response_parts import (
    FilePart,
    ResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)


class _Message(msgspec.Struct):
    role: str
    parts: list[Raw]
    metadata: tuple[Metadata, ...] = ()


class _Typed(msgspec.Struct):
    type: str


class _Text(msgspec.Struct):
    text: str


class _Result(msgspec.Struct):
    call_id: str
    name: str
    content: str
    is_error: bool = False


class _Thinking(msgspec.Struct):
    content: str
    signature: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments_json: str
    thought_signature: str | UnsetType = UNSET


def _tool_return(result: _Result) -> ToolReturnPart:
    return ToolReturnPart(
        tool_call_id=result.call_id,
        tool_name=result.name,
        content=result.content,
        outcome=Outcome.FAILED if result.is_error else Outcome.SUCCESS,
    )


def _tool_call(call: _Call) -> ToolCallPart:
    return ToolCallPart(
        tool_call_id=call.id,
        tool_name=call.name,
        args=call.arguments_json,
        thought_signature=call.thought_signature,
    )


def _thinking(part: _Thinking) -> ThinkingPart:
    return ThinkingPart(content=part.content, signature=part.signature, metadata=part.metadata)


def _file(media: AnyMedia) -> FilePart:
    return FilePart(content=media)


def _prompt(content: AnyMedia) -> UserPromptPart:
    return UserPromptPart(content=content)


_REQUEST: Final[dict[tuple[str, str], tuple[type, Callable[[Any], RequestPart]]]] = {
    ("system", "text"): (_Text, lambda part: SystemPromptPart(content=part.text)),
    ("user", "text"): (_Text, lambda part: UserPromptPart(content=TextContent(part.text))),
    ("tool", "tool_result"): (_Result, _tool_return),
}
_RESPONSE: Final[dict[tuple[str, str], tuple[type, Callable[[Any], ResponsePart]]]] = {
    ("assistant", "text"): (_Text, lambda part: TextPart(content=part.text)),
    ("assistant", "thinking"): (_Thinking, _thinking),
    ("assistant", "tool_call"): (_Call, _tool_call),
}
"""What stands in a message of each role, and the part of today that it becomes."""

_REQUESTS: Final = {"system", "user", "tool"}


def messages_of(raw_messages: Iterable[Raw]) -> tuple[Message, ...]:
    """Return the messages of a history document of version 1 as those of version 2.

    Raises `InvalidPayload`, or what the decoder raises.
    """
    return tuple(_message(raw) for raw in raw_messages)


def _message(raw: Raw) -> Message:
    message = msgspec.json.decode(raw, type=_Message)
    role, metadata = message.role, message.metadata
    if role in _REQUESTS:
        requests = tuple(_part(role, part, _REQUEST, _prompt) for part in message.parts)
        return RequestMessage(parts=requests, metadata=metadata)
    responses = tuple(_part(role, part, _RESPONSE, _file) for part in message.parts)
    if role != "assistant":
        raise InvalidPayload(f"a message has the role {role[:80]!r}, which is none of version 1")
    return ResponseMessage(parts=responses, metadata=metadata)


def _part(
    role: str,
    raw: Raw,
    table: dict[tuple[str, str], tuple[type, Callable[[Any], Any]]],
    of_media: Callable[[AnyMedia], Any],
) -> Any:
    kind = msgspec.json.decode(raw, type=_Typed).type
    known = table.get((role, kind))
    if known is not None:
        return known[1](msgspec.json.decode(raw, type=known[0]))
    if kind not in KINDS or role not in {"user", "assistant"}:
        raise InvalidPayload(f"a message of the role {role[:80]!r} has a part {kind[:80]!r}")
    return of_media(msgspec.json.decode(raw, type=Media).as_kind(KINDS[kind]))
