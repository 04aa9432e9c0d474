from __future__ import annotations

from typing import Any, Final

from perdure.errors import InvalidDeferredState
from perdure.journal.payloads.approval import Execution
from perdure.journal.payloads.bounds import PAUSED_STATE
from perdure.journal.payloads.envelope import Envelope, Member, messages_member
from perdure.journal.payloads.exact import U64, Exact
from perdure.journal.payloads.messages import Message
from perdure.journal.payloads.usage import RunUsage

PAUSED_STATE_VERSION: Final = 2
"""The version of the paused state that this release writes and reads."""


class ToolRetries(Exact, frozen=True):
    """How often a tool failed so far."""

    name: str
    count: U64


class PausedCall(Exact, frozen=True, kw_only=True):
    """A call of the response that the run paused at.

    `arguments_json` is what the tool is called with, `model_arguments_json` what the model wrote.
    `durable_sequence` is the number of the call among all of the run.
    """

    call_id: str
    name: str
    arguments_json: str
    model_arguments_json: str
    execution: Execution
    retry_number: U64
    durable_sequence: U64 | None = None


class PausedState(Exact, frozen=True, kw_only=True):
    """A run that waits for decisions: all that it needs to go on.

    `calls` are all calls of the last response, in its order; `pending` the messages that came in
    meanwhile, None for none.
    """

    prompt: str
    messages: tuple[Message, ...]
    instructions: tuple[str, ...] = ()
    usage: RunUsage = RunUsage()
    model_requests: U64
    total_tool_calls: U64
    output_retries: U64 = 0
    tool_retries: tuple[ToolRetries, ...] = ()
    calls: tuple[PausedCall, ...]
    pending: tuple[Message, ...] | None = None


def _pending() -> Member:
    history = messages_member("pending_history_json")

    def read(text: str | None) -> tuple[Message, ...] | None:
        return None if text is None else history.read(text)

    def write(messages: tuple[Message, ...] | None) -> Any:
        return None if messages is None else history.write(messages)

    return Member(history.name, str | None, read, write, default=None)


_STATE: Final = Envelope(
    PausedState,
    "the paused state",
    InvalidDeferredState,
    InvalidDeferredState,
    version=PAUSED_STATE_VERSION,
    bounds=PAUSED_STATE,
    members={"messages": messages_member("history_json"), "pending": _pending()},
)


def encode_paused_state(state: PausedState) -> bytes:
    """Return the document of a paused run; raise `InvalidDeferredState`."""
    return _STATE.encode(state)


def parse_paused_state(data: bytes) -> PausedState:
    """Return the paused run of a document; raise `InvalidDeferredState`."""
    return _STATE.parse(data)
