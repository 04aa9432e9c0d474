from __future__ import annotations

from perdure.errors.root import JournalError


class DurableSequenceExhausted(JournalError):
    """A sequence of request numbers has come to the largest one, which is never handed out."""


class DurableMcpEventsRequireRouting(JournalError):
    """An MCP request would hand its events to the wrong side; nothing was asked.

    Events of a durable request are operations of their own. A function of this process gets the
    events of a direct request only, since it would see none on a replay.
    """


class MissingMcpClientCapability(JournalError):
    """A request needs something that the client does not declare to be able to do."""
