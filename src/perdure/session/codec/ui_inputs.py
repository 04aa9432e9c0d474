from __future__ import annotations

from typing import Any, Final, cast

from perdure.session.codec.fields import Fields, booleans, texts
from perdure.session.codec.port import Input
from perdure.session.headers import CODEC_MESSAGE_ID, KIND, PART_TYPE, ROLE
from perdure.session.message import WireMessage

USER_MESSAGE: Final = "user-message"
REGENERATE: Final = "regenerate"
TOOL_RESULT: Final = "tool-result"
TOOL_RESULT_ERROR: Final = "tool-result-error"
TOOL_APPROVAL_RESPONSE: Final = "tool-approval-response"

ANSWERS: Final = {TOOL_RESULT, TOOL_RESULT_ERROR, TOOL_APPROVAL_RESPONSE}
"""What answers a call that an agent has made."""
INPUT_KINDS: Final = {USER_MESSAGE, *ANSWERS}
"""What brings something into a conversation; a request to regenerate does not."""

_ROLES: Final = {"user", "assistant", "system"}


def decode_input(message: WireMessage) -> list[Input]:
    """Return what a client sent; nothing for a request to regenerate and for unknown kinds.

    Payloads: a user message is `{"id"?, "part"}`, a result `{"toolCallId", "output"}`, a failed
    one `{"toolCallId", "message"}`, both with `{"seed"}` where they fork a conversation, and an
    answer `{"toolCallId", "approved", "reason"?}`.
    """
    kind, fields = message.codec.get(KIND, ""), message.codec
    message_id = message.header(CODEC_MESSAGE_ID)
    payload = _payload(kind, fields, message.data)
    if payload is None or not message_id:
        return []
    return [Input(message_id, kind, payload, message.header(ROLE) or "user")]


def _payload(kind: str, fields: Fields, data: object) -> dict[str, Any] | None:
    if kind == USER_MESSAGE:
        part = _part(fields, data)
        named = {"id": fields["messageId"]} if "messageId" in fields else {}
        return None if part is None else {**named, "part": part}
    if kind in (TOOL_RESULT, TOOL_RESULT_ERROR):
        said = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        member = "output" if kind == TOOL_RESULT else "message"
        given = {member: said[member]} if member in said else {}
        return {**texts(fields, "toolCallId"), **given, "seed": _seed(said.get("forkSeed"))}
    if kind == TOOL_APPROVAL_RESPONSE:
        approved = booleans(fields, "approved") or {"approved": False}
        return {**texts(fields, "toolCallId", "reason"), **approved}
    return None


def _part(fields: Fields, data: object) -> dict[str, Any] | None:
    kind = fields.get(PART_TYPE, "")
    if kind == "text":
        return {"type": kind, "text": data if isinstance(data, str) else ""}
    if kind == "file":
        url = data if isinstance(data, str) else ""
        return {"type": kind, **texts(fields, "mediaType"), "url": url}
    if kind.startswith("data-"):
        given = {} if data is None else {"data": data}
        return {"type": kind, **texts(fields, "id"), **given}
    return None


def _seed(fork_seed: object) -> list[dict[str, Any]]:
    """Return `{"codecMessageId", "message"}` for each message that a fork begins with.

    Whatever is malformed is left out, a message or a part of one.
    """
    members = cast("dict[str, Any]", fork_seed) if isinstance(fork_seed, dict) else {}
    listed = members.get("messages")
    found: list[dict[str, Any]] = []
    for entry in cast("list[Any]", listed) if isinstance(listed, list) else []:
        match entry:
            case {
                "codecMessageId": str(key),
                "message": {"id": str(), "role": str(role), "parts": list()} as message,
            } if key and role in _ROLES:
                seeded = cast("dict[str, Any]", message)
                good = [part for part in seeded["parts"] if _is_part(part)]
                found.append({"codecMessageId": key, "message": {**seeded, "parts": good}})
            case _:
                pass
    return found


def _is_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(cast("dict[str, Any]", part).get("type"), str)
