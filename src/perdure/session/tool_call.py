from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.codec import FoldedMessage, ToolResult
from perdure.session.lifecycle import ENDS
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree

_OUTCOMES: Final = ("output-available", "output-error", "output-denied")
_ASKING: Final = ("input-available", "approval-requested")


class ToolCall(msgspec.Struct, frozen=True):
    """A call that an agent has made: the run it is of, and the message that holds it."""

    run: RunNode
    message_id: str


def find_call(tree: Tree, tool_call_id: str, run_id: str | None = None) -> ToolCall | None:
    """Return the newest call with an id, of a run that was not left for another, or of one run.

    None while it is not seen, or not the start of its run.
    """
    for node in reversed(tree.nodes):
        if isinstance(node, RunNode) and _goes_on(tree, node) and run_id in (None, node.key):
            for folded in reversed(node.messages()):
                if holds_call(folded, tool_call_id):
                    return ToolCall(node, folded.codec_message_id)
    return None


def check_meant(tree: Tree, tool_call_id: str) -> None:
    """Raise `InvalidSessionArgument` where several runs wait for an answer to a call of this id.

    Such ids are of their run, and there are models that number their calls.
    """
    waiting = [
        node.key
        for node in tree.nodes
        if isinstance(node, RunNode)
        and _goes_on(tree, node)
        and node.info.lifecycle.status not in ENDS
        and any(_awaits(folded, tool_call_id) for folded in node.messages())
    ]
    if len(waiting) > 1:
        raise InvalidSessionArgument(
            f"the runs {', '.join(waiting)} wait for an answer to a call {tool_call_id}; say by"
            " `run_id` which one is meant"
        )


def holds_call(folded: FoldedMessage, tool_call_id: str) -> bool:
    """Whether a message has a call as one of its parts; messages without parts have none."""
    parts = cast("list[dict[str, Any]]", folded.message.get("parts", []))
    return any(part.get("toolCallId") == tool_call_id for part in parts)


def _goes_on(tree: Tree, run: RunNode) -> bool:
    return run.started and not tree.is_superseded(run.key)


def _awaits(folded: FoldedMessage, tool_call_id: str) -> bool:
    parts = cast("list[dict[str, Any]]", folded.message.get("parts", []))
    asked = [part for part in parts if part.get("toolCallId") == tool_call_id]
    return any(part.get("state") in _ASKING for part in asked)


def has_open_call(folded: FoldedMessage) -> bool:
    """Whether a message has a call that has come to nothing yet."""
    parts = cast("list[dict[str, Any]]", folded.message.get("parts", []))
    return any("toolCallId" in part and part.get("state") not in _OUTCOMES for part in parts)


def going_on(call: ToolCall) -> dict[str, str]:
    """Return the headers of an answer with which the run of the call goes on."""
    return {headers.CODEC_MESSAGE_ID: call.message_id, headers.RUN_ID: call.run.key}


def fork(
    run: RunNode, results: Sequence[ToolResult], new_id: Callable[[int], str]
) -> list[tuple[ToolResult, dict[str, str]]]:
    """Return results with which another run begins in the place of one, each with its headers.

    It begins with all messages of that run, under the ids that `new_id` gives for their places.
    """
    if run.parent is None:
        raise InvalidSessionArgument(
            f"the run {run.key} follows no message to fork at; answer it in place"
        )
    messages = [(new_id(place), folded) for place, folded in enumerate(run.messages())]
    seed = [{"codecMessageId": key, "message": folded.message} for key, folded in messages]
    about = {
        headers.ROLE: "assistant",
        headers.PARENT: run.parent,
        headers.SUPERSEDES: run.key,
    }
    placed: list[tuple[ToolResult, dict[str, str]]] = []
    for result in results:
        held = [key for key, folded in messages if holds_call(folded, result.tool_call_id)]
        seeded = msgspec.structs.replace(result, seed=seed)
        placed.append((seeded, {**about, headers.CODEC_MESSAGE_ID: held[-1]}))
    return placed
