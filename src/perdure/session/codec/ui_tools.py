from __future__ import annotations

from typing import Any, Final, cast

from perdure.session.codec.fields import ABSENT, read_json
from perdure.session.codec.port import Input
from perdure.session.codec.ui_inputs import TOOL_RESULT, TOOL_RESULT_ERROR

Part = dict[str, Any]

_IDENTITY: Final = ("type", "toolName", "toolCallId", "title", "providerExecuted", "input")

STATE_AFTER: Final = {
    "tool-input-start": "input-streaming",
    "tool-input-available": "input-available",
    "tool-input-error": "output-error",
    "tool-output-available": "output-available",
    "tool-output-error": "output-error",
    "tool-output-denied": "output-denied",
    "tool-approval-request": "approval-requested",
}
"""The state of a tool part after each chunk about it."""

_REFUSED: Final[Part] = {"id": "", "approved": False}
_CLOSERS: Final = {"{": "}", "[": "]", '"': '"'}


def tool_part(chunk: dict[str, Any]) -> Part:
    """Return the part that a chunk about a new call begins."""
    name = chunk.get("toolName", "")
    dynamic = chunk.get("dynamic") is True
    part: Part = {"type": "dynamic-tool", "toolName": name} if dynamic else {"type": f"tool-{name}"}
    part |= {
        name: chunk[name] for name in ("toolCallId", "title", "providerExecuted") if name in chunk
    }
    return {**part, "state": "input-streaming"}


def after_chunk(part: Part, chunk: dict[str, Any]) -> Part:
    """Return a part as a chunk leaves it: identity and input stay, the rest is of the new state."""
    kind = chunk["type"]
    after = _moved(part, STATE_AFTER[kind])
    if kind in ("tool-input-available", "tool-input-error"):
        after.pop("input", None)
    if kind == "tool-approval-request":
        after["approval"] = {"id": chunk.get("approvalId", "")}
    if kind == "tool-output-denied":
        after["approval"] = dict(_REFUSED)
    taken = ("input", "output", "errorText", "preliminary")
    return after | {name: chunk[name] for name in taken if name in chunk}


def after_input_text(part: Part, text: str) -> Part:
    """Return a part whose input has been streamed up to `text`; no input until that is JSON."""
    after = _moved(part, "input-streaming")
    after.pop("input", None)
    said = text.strip()
    # Most beginnings are not JSON, and reading each of them to its end would take quadratic time.
    if said and (said[0] not in _CLOSERS or said.endswith(_CLOSERS[said[0]])):
        value = read_json(text)
        if value is not ABSENT:
            after["input"] = value
    return after


def after_answer(part: Part, answer: Input) -> Part:
    """Return a part as the answer of a person or of a client's tool leaves it."""
    payload = answer.payload
    if answer.kind == TOOL_RESULT:
        output = {"output": payload["output"]} if "output" in payload else {}
        return _moved(part, "output-available") | output
    if answer.kind == TOOL_RESULT_ERROR:
        return _moved(part, "output-error") | {"errorText": payload.get("message", "")}
    if not payload["approved"]:
        return _moved(part, "output-denied") | {"approval": dict(_REFUSED)}
    asked = part.get("approval")
    request_id: Any = cast("Part", asked).get("id", "") if isinstance(asked, dict) else ""
    approval: Part = {"id": request_id, "approved": True}
    if "reason" in payload:
        approval["reason"] = payload["reason"]
    return _moved(part, "approval-responded") | {"approval": approval}


def _moved(part: Part, state: str) -> Part:
    return {name: part[name] for name in _IDENTITY if name in part} | {"state": state}
