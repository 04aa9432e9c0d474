from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Saying(msgspec.Struct, frozen=True):
    """A new message of a person: a text, a UI message, or the parts of one.

    Its parts are text, files and `data-*`; anything else that a UI message has is left out.
    """

    content: Any


class Regeneration(msgspec.Struct, frozen=True):
    """The wish that an answer is given anew; the headers say which."""


class ToolResult(msgspec.Struct, frozen=True):
    """What a client's tool returned, or the `error` that it failed with.

    `seed` has the messages that a conversation is forked with, `{"codecMessageId", "message"}`
    each; None where it goes on as it is.
    """

    tool_call_id: str
    output: Any = None
    error: str | None = None
    seed: Sequence[dict[str, Any]] | None = None


class Approval(msgspec.Struct, frozen=True):
    """A person's answer to an agent that asks before it calls a tool."""

    tool_call_id: str
    approved: bool
    reason: str | None = None


Said = Saying | Regeneration | ToolResult | Approval
"""What a client may say to an agent."""
