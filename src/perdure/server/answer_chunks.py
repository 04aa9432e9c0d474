"""What people and pages sent to a run, as chunks of the message that it became part of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.session.codec import Input
from perdure.session.codec.ui_inputs import TOOL_APPROVAL_RESPONSE, TOOL_RESULT, TOOL_RESULT_ERROR

Chunk = dict[str, Any]


def answer_chunk(answer: Input, approvals: Mapping[str, str] | None) -> Chunk | None:
    """Return what an answer changes in a message; None for one that changes nothing.

    `approvals` are the ids of approvals by those of their calls, or None for readers who know
    nothing of answers: they are told of a refusal alone.
    """
    said, call = answer.payload, answer.payload.get("toolCallId", "")
    if answer.kind == TOOL_RESULT:
        return {"type": "tool-output-available", "toolCallId": call, "output": said.get("output")}
    if answer.kind == TOOL_RESULT_ERROR:
        text = said.get("message", "")
        return {"type": "tool-output-error", "toolCallId": call, "errorText": text}
    if answer.kind != TOOL_APPROVAL_RESPONSE:
        return None
    if approvals is None:
        return None if said["approved"] else {"type": "tool-output-denied", "toolCallId": call}
    if call not in approvals:
        return None
    reason = {"reason": said["reason"]} if "reason" in said else {}
    known = {"approvalId": approvals[call], "approved": said["approved"]}
    return {"type": "tool-approval-response", **known, **reason}


def seed_chunks(seed: Sequence[Mapping[str, Any]]) -> list[Chunk]:
    """Return the messages that a run begins with, where another was left, as chunks."""
    chunks: list[Chunk] = []
    for number, entry in enumerate(seed):
        message = cast("dict[str, Any]", entry["message"])
        if message.get("role") != "assistant":
            continue
        parts = cast("list[dict[str, Any]]", message["parts"])
        for index, part in enumerate(parts):
            chunks += _part_chunks(part, f"seed-{number}-{index}")
    return chunks


def _part_chunks(part: dict[str, Any], key: str) -> list[Chunk]:
    kind: str = part["type"]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if kind in ("text", "reasoning"):
        return [
            {"type": f"{kind}-start", "id": key},
            {"type": f"{kind}-delta", "id": key, "delta": part.get("text", "")},
            {"type": f"{kind}-end", "id": key},
        ]
    if "toolCallId" in part:
        return _tool_chunks(part)
    return [part] if kind in ("file", "source-url", "source-document") or "data-" in kind else []


def _tool_chunks(part: dict[str, Any]) -> list[Chunk]:
    call = {"toolCallId": part["toolCallId"]}
    dynamic = part["type"] == "dynamic-tool"
    name = part.get("toolName", "") if dynamic else part["type"].removeprefix("tool-")
    tool = {**call, "toolName": name, **({"dynamic": True} if dynamic else {})}
    chunks: list[Chunk] = [{"type": "tool-input-start", **tool}]
    if part.get("state") != "input-streaming":
        chunks.append({"type": "tool-input-available", **tool, "input": part.get("input")})
    if part.get("state") == "output-available":
        output = part.get("output")
        chunks.append({"type": "tool-output-available", **call, "output": output})
    elif part.get("state") == "output-error":
        text = part.get("errorText", "")
        chunks.append({"type": "tool-output-error", **call, "errorText": text})
    elif part.get("state") == "output-denied":
        chunks.append({"type": "tool-output-denied", **call})
    return chunks
