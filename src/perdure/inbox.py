from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from perdure.activity import Place
from perdure.fence import Fence
from perdure.journal.store import NewRecord

SAID: Final = "session.said"
"""The name of messages that people in its session send to a run while it goes on."""


class NewMessage(msgspec.Struct, frozen=True):
    """A message to a run; `message_id` is the sender's, `payload_json` one JSON document.

    `sent_by` says who sends it, for people, and `sent_at` when, in wall seconds, UTC.
    """

    run_id: str
    message_id: str
    name: str
    payload_json: bytes
    sent_by: str
    sent_at: float


class Message(msgspec.Struct, frozen=True):
    """A message as it stands in the inbox of a run.

    `payload_json` is None for one that the store itself wrote, which says nothing but its name.
    `edition` counts what was sent under its id, from 1. `taken_by` is the place of the operation
    that took it, and `taken_at` when, in wall seconds, UTC; both are None while it waits.
    """

    message_id: str
    name: str
    edition: int
    payload_json: bytes | None
    sent_by: str
    sent_at: float
    taken_by: Place | None = None
    taken_at: float | None = None


class InboxStore(Protocol):
    """The port through which messages reach runs, whether or not somebody executes them."""

    async def send_message(self, message: NewMessage, *, edit: bool = False) -> Message:
        """Put a message into the inbox of a run that has not ended, and return how it stands.

        One of the same id, name and payload is there once, however often it is sent. With `edit`,
        another payload replaces that of one that nobody has taken. A run that is suspended until
        such a message comes waits for a worker from now on.

        Durable when it returns: the message, fsynced.
        If it raises: `UnknownRun`, `RunEnded`, `MessageConflict`, `MessageTaken` or a
        `StorageError`, and nothing was written.
        """
        ...

    async def withdraw_message(self, run_id: str, message_id: str) -> bool:
        """Take back a message that nobody has taken; return whether it was there.

        Durable when it returns: that it is gone, fsynced.
        If it raises: `MessageTaken` or a `StorageError`.
        """
        ...

    async def next_message(self, run_id: str, name: str) -> Message | None:
        """Return the oldest message of a name that nobody has taken, or None."""
        ...

    async def list_messages(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a run, those that were taken too, in the order they came."""
        ...

    async def take_message(self, fence: Fence, message: Message, record: NewRecord) -> bool:
        """Take a message and write the record of the operation that it ends, both or neither.

        Returns whether it was there still, in the edition that was read.

        Durable when it returns: both, fsynced, if it was.
        If it raises: `LeaseLost` when the fence no longer holds, or a `StorageError`; nothing was
        written.
        """
        ...

    async def end_wait(self, fence: Fence, awaits: str, record: NewRecord) -> bool:
        """Write the record of a wait that ends without a message, unless one has come meanwhile.

        Returns whether it was written.

        Durable when it returns: the record, fsynced, if it was.
        If it raises: as `take_message`.
        """
        ...
