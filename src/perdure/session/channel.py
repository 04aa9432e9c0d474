from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from perdure.session.message import WireMessage


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is to be published; it has no serial yet.

    `message_id` is the same whenever the same draft is published again, and of no other draft. What
    is `ephemeral` is delivered to those who are attached and not stored.
    """

    message_id: str
    name: str
    transport: dict[str, str]
    codec: dict[str, str] = {}
    data: Any = None
    ephemeral: bool = False


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """What an append adds to a streamed message, or what an update makes of it.

    Both tiers of headers replace those that the message had.
    """

    data: str
    transport: dict[str, str]
    codec: dict[str, str]


class HistoryPage(msgspec.Struct, frozen=True):
    """Messages as they stand, newest first; `more` is whether there are older ones."""

    messages: Sequence[WireMessage]
    more: bool


class Channel(Protocol):
    """Where the messages of one session are, as one of its clients has it.

    Serials order messages, and versions the deliveries, as strings; every delivery has a higher
    version than those before it, so a version is a cursor. A client is also given what it wrote
    itself. Writes raise `SendFailed` where the same may succeed later, and then it is not known
    whether it has been done; any other `SessionError`, such as `SessionForbidden`, is final.
    """

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        """Write messages, all or none, and return their serials in ascending order.

        A draft whose `message_id` was published before is not written again: its serial from then
        is returned. Durable when it returns: all of them, but those that are ephemeral.
        """
        ...

    async def append(self, serial: str, change: Revision) -> str:
        """Add to the data of a message; return the version.

        Calls for one message are made one after the other. An append has no id: one that failed is
        not sent again, it is made up for by an update. Durable when it returns: the addition.
        """
        ...

    async def update(self, serial: str, change: Revision) -> str:
        """Replace the data of a message; return the version.

        It may be repeated. Durable when it returns: the data and the headers.
        """
        ...

    async def history(self, before: str | None = None, limit: int = 100) -> HistoryPage:
        """Return the newest messages with a serial lower than `before`, or the newest of all.

        Raises `HistoryFailed` where they cannot be read now.
        """
        ...

    def subscribe(
        self, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WireMessage]]:
        """Attach, and give every delivery behind the cursor `after`, or from now on.

        Attached once it is entered: what is published from then on is delivered. The iterator
        raises `ContinuityLost` where deliveries may have been missed.
        """
        ...
