from __future__ import annotations

from typing import Any, Final, NoReturn, cast

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session.codec.fields import ABSENT, Fields, read_json
from perdure.session.codec.repair import Repair
from perdure.session.codec.written import Begin, End, More, Whole, Written
from perdure.session.headers import KIND

_TEXTS: Final = ("text", "reasoning")
_TOOL: Final = (
    "toolCallId",
    "toolName",
    "title",
    "dynamic",
    "providerExecuted",
    "providerMetadata",
)
_OUTPUT: Final = ("toolCallId", "dynamic", "providerExecuted")
_SOURCE: Final = ("sourceId", "title", "providerMetadata")

# By type of chunk: the members that are headers, and the member that is the data as it stands.
_WHOLE: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "start": (("messageId", "messageMetadata"), ""),
    "start-step": ((), ""),
    "finish-step": ((), ""),
    "finish": (("finishReason", "messageMetadata"), ""),
    "message-metadata": (("messageMetadata",), ""),
    "error": ((), "errorText"),
    "abort": ((), "reason"),
    "file": (("mediaType", "providerMetadata"), "url"),
    "source-url": (_SOURCE, "url"),
    "source-document": ((*_SOURCE, "mediaType", "filename"), ""),
    "tool-output-denied": (("toolCallId",), ""),
    "tool-approval-request": (("toolCallId", "approvalId"), ""),
}
# The same for those whose data are an object of members.
_OBJECTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "tool-input-error": (_TOOL, ("errorText", "input")),
    "tool-output-available": ((*_OUTPUT, "preliminary"), ("output",)),
    "tool-output-error": (_OUTPUT, ("errorText",)),
}
_DOCUMENTS: Final = {"providerMetadata", "messageMetadata"}


class UiEncoder:
    """Writes the chunks of a UI message stream, for one message.

    A `start` and a `start-step` that were left out are written: readers add them too, but one that
    reads the end of a conversation first cannot know that they had been there.
    """

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self._repair = Repair()
        self._open: dict[tuple[str, str], str] = {}

    def encode(self, output: Any) -> list[Written]:
        """Return what a chunk is written as; `InvalidSessionArgument` if it is of no known type."""
        chunk = cast("dict[str, Any]", output if isinstance(output, dict) else {})
        kind = chunk.get("type")
        if not isinstance(kind, str):
            _refuse("an output has no type")
        written: list[Written] = []
        for missing in self._repair.missing_before(self._as_read(chunk)):
            written += self._chunk(missing["type"], missing)
        return written + self._chunk(kind, chunk)

    def finish(self) -> list[Written]:
        """Return nothing: a stream of chunks says itself when it ends."""
        return []

    def _as_read(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk as readers have it: an input that was not streamed begins a call too."""
        key = ("tool-input", str(chunk.get("toolCallId", "")))
        begins = chunk["type"] == "tool-input-available" and key not in self._open
        return {"type": "tool-input-start"} if begins else chunk

    def _chunk(self, kind: str, chunk: dict[str, Any]) -> list[Written]:
        family, _, verb = kind.rpartition("-")
        if family in (*_TEXTS, "tool-input") and verb in ("start", "delta", "end"):
            return [self._streamed(family, verb, chunk)]
        if kind == "tool-input-available":
            return [self._tool_input(chunk)]
        if kind.startswith("data-"):
            fields = _fields(kind, chunk, ("id", "transient"))
            return [Whole(fields, chunk.get("data"), chunk.get("transient") is True)]
        if kind in _OBJECTS:
            names, members = _OBJECTS[kind]
            data = {name: chunk[name] for name in members if name in chunk}
            return [Whole(_fields(kind, chunk, names), data)]
        if kind not in _WHOLE:
            _refuse(f"a chunk of type {kind!r} cannot be put out")
        names, member = _WHOLE[kind]
        if kind == "start" and chunk.get("messageId") is None:
            chunk = {**chunk, "messageId": self._message_id}
        return [Whole(_fields(kind, chunk, names), chunk.get(member) or "")]

    def _streamed(self, family: str, verb: str, chunk: dict[str, Any]) -> Written:
        is_text = family in _TEXTS
        name = chunk.get("id" if is_text else "toolCallId")
        if not isinstance(name, str) or not name:
            _refuse(f"a {family}-{verb} does not say of which stream it is")
        key = (family, name)
        fields = _fields(family, chunk, ("id", "providerMetadata") if is_text else _TOOL)
        if verb == "start":
            self._open[key] = ""
            return Begin(key, fields)
        if key not in self._open:
            _refuse(f"a {family}-{verb} is of {name!r}, which was not started")
        if verb == "end":
            del self._open[key]
            return End(key, fields)
        text = chunk.get("delta" if is_text else "inputTextDelta")
        if not isinstance(text, str):
            _refuse(f"a {family}-delta of {name!r} has no text")
        self._open[key] += text
        return More(key, text)

    def _tool_input(self, chunk: dict[str, Any]) -> Written:
        key = ("tool-input", str(chunk.get("toolCallId", "")))
        streamed = self._open.pop(key, None)
        fields = _fields("tool-input", chunk, _TOOL)
        if streamed is None:
            return Whole(fields, chunk.get("input"))
        if "input" not in chunk:
            return End(key, fields)
        value = read_json(streamed) if streamed else ABSENT
        read = streamed if streamed and value is ABSENT else value
        # Readers have the input from the stream alone, which may say less, or something else.
        same = read is not ABSENT and read == chunk["input"]
        return End(key, fields, None if same else _json(chunk["input"]))


def _fields(kind: str, chunk: dict[str, Any], names: tuple[str, ...]) -> Fields:
    """Return members as headers; what is not there, or null, is not written."""
    fields = {KIND: kind}
    for name in names:
        value = chunk.get(name)
        if value is None:
            continue
        if name in _DOCUMENTS:
            fields[name] = _json(value)
        elif isinstance(value, bool):
            fields[name] = "true" if value else "false"
        elif isinstance(value, str):
            fields[name] = value
        else:
            _refuse(f"{name} of a {chunk.get('type')} chunk is no text")
    return fields


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(f"a value of a chunk is no JSON: {error}", error)


def _refuse(why: str, cause: Exception | None = None) -> NoReturn:
    raise InvalidSessionArgument(f"{why}; put out chunks of the UI message stream") from cause
