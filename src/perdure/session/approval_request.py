from __future__ import annotations

from typing import Final

from perdure.session import headers
from perdure.session.run_node import RunNode

_KIND: Final = "tool-approval-request"


def approvals_of(run: RunNode) -> dict[str, str]:
    """Return under which ids a run has asked whether calls may be made, by the ids of the calls.

    The part of a call does not say that any more once it was answered.
    """
    return {
        message.codec.get("toolCallId", ""): message.codec.get("approvalId", "")
        for message in run.log.entries()
        if message.codec.get(headers.KIND) == _KIND
    }
