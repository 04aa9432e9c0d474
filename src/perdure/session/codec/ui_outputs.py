from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from perdure.session.codec.fields import ABSENT, Fields, booleans, documents, read_json, texts
from perdure.session.headers import COMPLETE, KIND, STATUS
from perdure.session.message import WireMessage

Chunk = dict[str, Any]
"""A chunk of a UI message stream: `{"type": …}` and the members of that type."""

TEXT_STREAMS: Final = ("text", "reasoning")
TOOL_INPUT: Final = "tool-input"

_TOOL_TEXTS: Final = ("toolCallId", "toolName", "title")
_TOOL_BOOLEANS: Final = ("dynamic", "providerExecuted")
_FINISH_REASONS: Final = {"stop", "length", "content-filter", "tool-calls", "error", "other"}


def stream_chunks(message: WireMessage, before: WireMessage | None) -> list[Chunk] | None:
    """Return the chunks of a streamed output, or those it has beyond an earlier state of it.

    None means that it is no continuation of that state. A stream that was cancelled has no chunk
    for its end.
    """
    kind = message.codec.get(KIND, "")
    if kind not in TEXT_STREAMS and kind != TOOL_INPUT:
        return []
    start, news = [_start(kind, message.codec)], message.text
    if before is not None:
        ended = before.header(STATUS) == COMPLETE or not before.streamed
        if ended or not news.startswith(before.text):
            return None
        start, news = [], news[len(before.text) :]
    chunks = start + ([_delta(kind, message.codec, news)] if news else [])
    if message.header(STATUS) == COMPLETE:
        chunks.append(_end(kind, message.codec, message.text))
    return chunks


def discrete_chunks(message: WireMessage) -> list[Chunk]:
    """Return the chunks of an output that came as one message; none if its kind is not known."""
    kind, fields, data = message.codec.get(KIND, ""), message.codec, message.data
    if kind.startswith("data-"):
        known = texts(fields, "id") | booleans(fields, "transient")
        return [{"type": kind, **known, **({} if data is None else {"data": data})}]
    decode = _DISCRETE.get(kind)
    return [] if decode is None else decode(kind, fields, data)


def _start(kind: str, fields: Fields) -> Chunk:
    if kind in TEXT_STREAMS:
        known = texts(fields, "id")
    else:
        known = texts(fields, *_TOOL_TEXTS) | booleans(fields, *_TOOL_BOOLEANS)
    return {"type": f"{kind}-start", **known, **documents(fields, "providerMetadata")}


def _delta(kind: str, fields: Fields, news: str) -> Chunk:
    if kind in TEXT_STREAMS:
        return {"type": f"{kind}-delta", **texts(fields, "id"), "delta": news}
    return {"type": "tool-input-delta", **texts(fields, "toolCallId"), "inputTextDelta": news}


def _end(kind: str, fields: Fields, whole: str) -> Chunk:
    metadata = documents(fields, "providerMetadata")
    if kind in TEXT_STREAMS:
        return {"type": f"{kind}-end", **texts(fields, "id"), **metadata}
    chunk = {"type": "tool-input-available", **texts(fields, "toolCallId", "toolName"), **metadata}
    if whole:
        value = read_json(whole)
        chunk["input"] = whole if value is ABSENT else value
    return chunk


def _tool(fields: Fields) -> Chunk:
    return (
        texts(fields, *_TOOL_TEXTS)
        | booleans(fields, *_TOOL_BOOLEANS)
        | documents(fields, "providerMetadata")
    )


def _members(data: object, *names: str) -> Chunk:
    """Return those members of data that are there."""
    if not isinstance(data, dict):
        return {}
    members = cast("dict[str, Any]", data)
    return {name: members[name] for name in names if name in members}


def _text(data: object) -> str:
    return data if isinstance(data, str) else ""


def _whole_tool_input(kind: str, fields: Fields, data: object) -> list[Chunk]:
    """Return the chunks of an input that was not streamed; its data are the input itself."""
    given = {} if data is None else {"input": data}
    tool = _tool(fields)
    return [
        {"type": f"{kind}-start", **tool},
        {"type": f"{kind}-available", **tool, **given},
    ]


def _tool_input_error(kind: str, fields: Fields, data: object) -> list[Chunk]:
    return [{"type": kind, **_tool(fields), **_members(data, "errorText", "input")}]


def _tool_output(kind: str, fields: Fields, data: object) -> list[Chunk]:
    flags = booleans(fields, *_TOOL_BOOLEANS, "preliminary")
    said = _members(data, "output" if kind == "tool-output-available" else "errorText")
    return [{"type": kind, **texts(fields, "toolCallId"), **flags, **said}]


def _tool_decision(kind: str, fields: Fields, data: object) -> list[Chunk]:
    del data
    return [{"type": kind, **texts(fields, "toolCallId", "approvalId")}]


def _message_bound(kind: str, fields: Fields, data: object) -> list[Chunk]:
    """Return a chunk about the message as a whole: its start, its end, or metadata of it."""
    del data
    chunk = {"type": kind, **documents(fields, "messageMetadata")}
    if kind == "start":
        chunk |= texts(fields, "messageId")
    if kind == "finish":
        reason = fields.get("finishReason", "")
        chunk["finishReason"] = reason if reason in _FINISH_REASONS else "stop"
    return [chunk]


def _step_bound(kind: str, fields: Fields, data: object) -> list[Chunk]:
    del fields, data
    return [{"type": kind}]


def _broken_off(kind: str, fields: Fields, data: object) -> list[Chunk]:
    del fields
    said = _text(data)
    if kind == "error":
        return [{"type": kind, "errorText": said}]
    return [{"type": kind, **({"reason": said} if said else {})}]


def _file(kind: str, fields: Fields, data: object) -> list[Chunk]:
    metadata = documents(fields, "providerMetadata")
    return [{"type": kind, "url": _text(data), **texts(fields, "mediaType"), **metadata}]


def _source(kind: str, fields: Fields, data: object) -> list[Chunk]:
    known = texts(fields, "sourceId", "mediaType", "title", "filename")
    url = {"url": _text(data)} if kind == "source-url" else {}
    return [{"type": kind, **known, **url, **documents(fields, "providerMetadata")}]


_DISCRETE: Final[dict[str, Callable[[str, Fields, object], list[Chunk]]]] = {
    "start": _message_bound,
    "finish": _message_bound,
    "message-metadata": _message_bound,
    "start-step": _step_bound,
    "finish-step": _step_bound,
    "error": _broken_off,
    "abort": _broken_off,
    "file": _file,
    "source-url": _source,
    "source-document": _source,
    TOOL_INPUT: _whole_tool_input,
    "tool-input-error": _tool_input_error,
    "tool-output-available": _tool_output,
    "tool-output-error": _tool_output,
    "tool-output-denied": _tool_decision,
    "tool-approval-request": _tool_decision,
}
