from __future__ import annotations

from typing import Any

import msgspec

from perdure.server.problems import Refused
from perdure.session.codec import Approval, ToolResult

Message = dict[str, Any]


class ChatBody(msgspec.Struct, rename="camel"):
    """What `useChat` posts; other members are passed over, since pages add their own."""

    id: str
    messages: list[Message]
    trigger: str = "submit-message"
    message_id: str | None = None


class Say(msgspec.Struct, frozen=True):
    """Something new, or in the place of the message `edits`, by the id that the page has for it."""

    message: Message
    edits: str | None


class Regenerate(msgspec.Struct, frozen=True):
    """Another answer in the place of the message `message_id`, or of the last one."""

    message_id: str | None


class Continue(msgspec.Struct, frozen=True):
    """Answers to what the message `message_id` asks: of people, and of the page's own tools."""

    message_id: str
    approvals: list[Approval]
    results: list[ToolResult]


Wanted = Say | Regenerate | Continue


def wanted(body: ChatBody, most_parts: int) -> Wanted:
    """Return what a page asks for. Only its newest message is looked at.

    What came before is the session's own, whatever the page says of it. Raises `Refused`.
    """
    if body.trigger == "regenerate-message":
        return Regenerate(body.message_id)
    if body.trigger != "submit-message":
        raise _refuse(f"the trigger {body.trigger!r:.60} is not known")
    if not body.messages:
        raise _refuse("there are no messages")
    match body.messages[-1]:
        case {"role": "user", "id": str(key), "parts": list()} as message if key:
            check_said(message["parts"], most_parts)
            # A page that edits a message sends it under the id that it had.
            return Say({"id": key, "parts": message["parts"]}, body.message_id)
        case {"role": "assistant", "id": str(key), "parts": list()} as message if key:
            answers = [_answer(part) for part in message["parts"]]
            approvals = [answer for answer in answers if isinstance(answer, Approval)]
            results = [answer for answer in answers if isinstance(answer, ToolResult)]
            return Continue(key, approvals, results)
        case _:
            raise _refuse("the last message is none of a user or an assistant, with id and parts")


def check_said(parts: list[Any], most: int) -> None:
    """Raise `Refused` for a message of too many parts, or one that says nothing."""
    if len(parts) > most:
        raise Refused(413, "TooManyParts", f"a message has {most} parts at most")
    if not any(_says(part) for part in parts):
        raise Refused(
            400,
            "SaysNothing",
            "a message says something: it has a text that is not blank, or a part of type file or"
            " data-NAME",
        )


def _says(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str(text)}:
            return bool(text.strip())
        case {"type": str(kind)}:
            return kind == "file" or kind.startswith("data-")
        case _:
            return False


def _answer(part: Any) -> Approval | ToolResult | None:
    """Return what a part of the page's message answers; the session knows if that was asked."""
    match part:
        case {
            "state": "approval-responded" | "output-denied",
            "toolCallId": str(call),
            "approval": {"approved": bool(approved)},
        }:
            reason = part["approval"].get("reason")
            return Approval(call, approved, reason if isinstance(reason, str) else None)
        case {"state": "output-available", "toolCallId": str(call), "output": _}:
            return ToolResult(call, part["output"])
        case {"state": "output-error", "toolCallId": str(call), "errorText": str(text)}:
            return ToolResult(call, error=text)
        case _:
            return None


def _refuse(why: str) -> Refused:
    return Refused(400, "InvalidBody", f"{why}; send what useChat sends")
