from __future__ import annotations

from perdure.errors.root import JournalError


class InvalidCheckpoint(JournalError):
    """A checkpoint, or a file of them, is malformed."""


class CheckpointTooLarge(JournalError):
    """The state of a checkpoint is empty or over its limit, or the file is over its own."""


class UnsupportedCheckpointVersion(JournalError):
    """A file of checkpoints is of a version that this release cannot read."""


class CheckpointConflict(JournalError):
    """A checkpoint does not go on from the one that is stored."""


class StaleCheckpoint(JournalError):
    """A checkpoint has a lower revision than the one that is stored."""


class InvalidDocument(JournalError):
    """A document of the wire is over its limit, is malformed, or breaks a rule of its kind."""


class UnsupportedDocument(JournalError):
    """A document of the wire is well formed but of a version that this release cannot read."""


class InvalidHistory(InvalidDocument):
    """A history document, or the messages for one."""


class UnsupportedVersion(UnsupportedDocument):
    """A history document of another version than 1 and 2."""


class InvalidModelRequest(InvalidDocument):
    """The input of a model request, or the history in it."""


class InvalidModelResponse(InvalidDocument):
    """The output of a model request: a history document of exactly one response."""


class UnsupportedModelWireVersion(UnsupportedDocument):
    """The input of a model request of another version."""


class InvalidToolRequest(InvalidDocument):
    """The input of a tool call, or the history in it."""


class InvalidToolResponse(InvalidDocument):
    """The output of a tool call, or the follow-ups in it."""


class UnsupportedToolWireVersion(UnsupportedDocument):
    """The input or the output of a tool call of another version."""


class InvalidMcpRequest(InvalidDocument):
    """The input of an MCP request, or the JSON in it."""


class InvalidMcpResponse(InvalidDocument):
    """The output of an MCP request, or the JSON in it."""


class SensitiveMcpHeader(InvalidDocument):
    """An MCP request carries a header that authenticates, which is never stored."""


class UnsupportedMcpWireVersion(UnsupportedDocument):
    """The input or the output of an MCP request of another version."""


class InvalidEventRequest(InvalidDocument):
    """The input of an event delivery, or the event in it."""


class UnsupportedEventWireVersion(UnsupportedDocument):
    """The input of an event delivery of another version."""


class InvalidRetryRequest(InvalidDocument):
    """The input of a retry delay."""


class UnsupportedRetryWireVersion(UnsupportedDocument):
    """The input of a retry delay of another version."""


class InvalidApprovalRequest(InvalidDocument):
    """The input of an approval: a call, and the decision that is proposed for it."""


class InvalidApprovalResponse(InvalidDocument):
    """The output of an approval: the decision."""


class UnsupportedApprovalWireVersion(UnsupportedDocument):
    """The input or the output of an approval of another version."""


class InvalidDeferredState(InvalidDocument):
    """A paused state, or the decisions that resume it: malformed, or of another version."""
