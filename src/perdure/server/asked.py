from __future__ import annotations

from typing import Any, cast

import msgspec

from perdure.session.approval_request import approvals_of
from perdure.session.lifecycle import ENDS
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree


class Asked(msgspec.Struct, frozen=True):
    """What a run asks of a person, or of a tool of the page: one of its tool calls.

    `state` is that of the call's part in the UI message.
    """

    run: RunNode
    tool_call_id: str
    approval_id: str
    state: str

    @property
    def event_id(self) -> str:
        """The event id of the answer: there is one answer, however often it is sent."""
        return f"approval/{self.run.key}/{self.approval_id or self.tool_call_id}"

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered, and the run may still go on."""
        return self.state == "approval-requested" and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run.info.lifecycle.status in ENDS


def asked_by(run: RunNode) -> list[Asked]:
    """Return the tool calls of a run, and how they stand."""
    approvals = approvals_of(run)
    found: list[Asked] = []
    for folded in run.messages():
        for part in cast("list[dict[str, Any]]", folded.message["parts"]):
            match part:
                case {"toolCallId": str(call), "state": str(state)}:
                    found.append(Asked(run, call, approvals.get(call, ""), state))
                case _:
                    pass
    return found


def find_asked(tree: Tree, item: str, run_id: str | None = None) -> Asked | None:
    """Return the tool call of this id, or of an approval of this id; of one run, if that is told.

    Such ids are of their run: the newest that is open is meant, or else the newest.
    """
    found = [
        asked
        for node in reversed(tree.nodes)
        if isinstance(node, RunNode) and run_id in (None, node.key)
        for asked in reversed(asked_by(node))
        if item in (asked.approval_id, asked.tool_call_id)
    ]
    return next((asked for asked in found if asked.is_open), found[0] if found else None)
