from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session.message import WireMessage


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is to be published; it has no serial yet.

    `message_id` is the same whenever its client publishes the same draft again, and of no other one
    of this client; what others call theirs makes no difference. What is `ephemeral` is delivered to
    those who are attached, and not stored.
    """

    message_id: str
    name: str
    transport: dict[str, str]
    codec: dict[str, str] = {}
    data: Any = None
    ephemeral: bool = False

    def check(self) -> None:
        """Raise `InvalidSessionArgument` unless a wire can carry it."""
        _encoded(self)


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """What an append adds to a streamed message, or what an update makes of it.

    Both tiers of headers replace those that the message had.
    """

    data: str
    transport: dict[str, str]
    codec: dict[str, str]

    def check(self) -> None:
        """Raise `InvalidSessionArgument` unless a wire can carry it."""
        _encoded(self)


class HistoryPage(msgspec.Struct, frozen=True):
    """Messages as they stand, newest first; `more` is whether there are older ones."""

    messages: Sequence[WireMessage]
    more: bool


class Snapshot(msgspec.Struct, frozen=True):
    """The newest messages as they stood at one point, newest first, and the cursor of that point.

    `more` is whether there are older ones. Deliveries behind `cursor` continue it without a gap.
    """

    messages: Sequence[WireMessage]
    cursor: str
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

        A draft whose `message_id` this client published before is not written again: its serial
        from then is returned. Durable when it returns: all of them, but those that are ephemeral.
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

        Attached once it is entered: what is published from then on is delivered, once each and in
        the order of versions. Raises `ContinuityLost` where deliveries may have been missed, on
        entering or from the iterator.
        """
        ...


class SnapshotChannel(Channel, Protocol):
    """A channel that says of which point its newest messages are.

    So whoever comes late reads them once, and subscribes to what is behind.
    """

    async def snapshot(self, limit: int = 100) -> Snapshot:
        """Return the newest messages as they stand, and the cursor behind them.

        Raises `HistoryFailed` where they cannot be read now.
        """
        ...


def as_carried(data: Any) -> Any:
    """Return data as they come off a wire. Raises `InvalidSessionArgument` if they are no JSON."""
    return msgspec.json.decode(_encoded(data))


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSessionArgument(f"the data of a message are no JSON: {error}") from error
