from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never, cast

from perdure.errors import InvalidSessionArgument
from perdure.session.codec.fields import Fields
from perdure.session.codec.said import Approval, Regeneration, Said, Saying, ToolResult
from perdure.session.codec.ui_inputs import (
    REGENERATE,
    TOOL_APPROVAL_RESPONSE,
    TOOL_RESULT,
    TOOL_RESULT_ERROR,
    USER_MESSAGE,
)
from perdure.session.codec.written import Whole
from perdure.session.headers import FALSE, KIND, PART_TYPE, TRUE


def encode_said(said: Said, message_id: str) -> list[Whole]:
    """Return what is written for what a client says: one message, or one for each part.

    A message that has no id of its own has `message_id`, since not all readers give it one. Raises
    `InvalidSessionArgument` where it is nothing that can be said.
    """
    match said:
        case Saying():
            return _saying(said.content, message_id)
        case Regeneration():
            return [Whole({KIND: REGENERATE})]
        case ToolResult():
            return [_tool_result(said)]
        case Approval():
            fields = {
                KIND: TOOL_APPROVAL_RESPONSE,
                "toolCallId": said.tool_call_id,
                "approved": TRUE if said.approved else FALSE,
            }
            return [Whole(fields if said.reason is None else {**fields, "reason": said.reason})]
        case _:
            assert_never(said)


def _saying(content: object, message_id: str) -> list[Whole]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if isinstance(content, Mapping):
        message = cast("Mapping[str, Any]", content)
        message_id = str(message.get("id") or message_id)
        text = {"type": "text", "text": message.get("text", "")}
        content = message.get("parts") or [text]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray) or not content:
        raise InvalidSessionArgument(
            "what is said is a text, a UI message, or a list of one or more of its parts"
        )
    parts = [_part(part) for part in cast("Sequence[object]", content)]
    written = [part for part in parts if part] or [_text("")]
    common = {KIND: USER_MESSAGE, "messageId": message_id}
    return [Whole({**common, **part.fields}, part.data) for part in written]


def _part(part: object) -> Whole | None:
    """Return how a part is written; None for one that a person's message cannot have."""
    members = cast("dict[str, Any]", part if isinstance(part, dict) else {})
    match members:
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case {"type": "file", "url": str(url)}:
            return Whole({PART_TYPE: "file", **_named(members, "mediaType")}, url)
        case {"type": str(kind)} if kind.startswith("data-"):
            return Whole({PART_TYPE: kind, **_named(members, "id")}, members.get("data"))
        case {"type": str(kind)} if kind not in ("text", "file"):
            return None
        case _:
            raise InvalidSessionArgument(f"a part of a message is malformed: {part!r:.200}")


def _named(members: dict[str, Any], name: str) -> Fields:
    value = members.get(name)
    return {name: value} if isinstance(value, str) else {}


def _text(text: str) -> Whole:
    return Whole({PART_TYPE: "text"}, text)


def _tool_result(said: ToolResult) -> Whole:
    failed = said.error is not None
    data: dict[str, Any] = {"message": said.error} if failed else {"output": said.output}
    if said.seed is not None:
        data["forkSeed"] = {"messages": list(said.seed)}
    kind = TOOL_RESULT_ERROR if failed else TOOL_RESULT
    return Whole({KIND: kind, "toolCallId": said.tool_call_id}, data)
