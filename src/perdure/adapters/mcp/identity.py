from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from perdure.errors import DurableSequenceExhausted, ForeignTask, InvalidInvocation
from perdure.ids import check_identifier
from perdure.journal.invocation import SEQUENCE_LIMIT

MCP_STEP: Final = "mcp.request"
"""The step id of requests that were given no other."""


class DurableRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one MCP request within a run: a step id and a number."""

    sequence: int
    step_id: str = MCP_STEP


class DurableRequestSequence:
    """Hands out the identities of requests that are made one after another, `first` and on.

    One task owns it; give each of several concurrent tasks a sequence with a step id of its own.
    Tools that an agent calls on MCP servers have the same default step id: a sequence beside an
    agent needs another step id, or a `first` that the agent does not come to.
    """

    def __init__(self, first: int = 1, *, step_id: str = MCP_STEP) -> None:
        check_identifier(step_id, "step id")
        if type(first) is not int or not 0 <= first <= SEQUENCE_LIMIT:
            raise InvalidInvocation(
                f"a sequence begins with a whole number from 0 to {SEQUENCE_LIMIT}, not {first!r}"
            )
        self._next = first
        self._step_id = step_id
        self._task: asyncio.Task[Any] | None = None

    def claim(self) -> DurableRequest:
        """Return the next identity, which nobody gets again.

        Raises `ForeignTask` from a second task, and `DurableSequenceExhausted` where the largest
        number is next, which is never handed out.
        """
        task = asyncio.current_task()
        if self._task is not None and self._task is not task:
            raise ForeignTask(
                f"the sequence of {self._step_id} is used by two tasks, whose order a replay cannot"
                " repeat: give each a DurableRequestSequence with a step_id of its own"
            )
        if self._next == SEQUENCE_LIMIT:
            raise DurableSequenceExhausted(
                f"the sequence of {self._step_id} has no number left: begin another one, with a"
                " smaller first number or another step_id"
            )
        self._task = task
        claimed = DurableRequest(sequence=self._next, step_id=self._step_id)
        self._next += 1
        return claimed
