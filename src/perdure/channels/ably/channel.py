from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final, TypeVar

from ably.types import operations  # pyright: ignore[reportMissingTypeStubs]

from perdure.channels.ably.attachments import Attachments, Deliveries
from perdure.channels.ably.client import Client, Page
from perdure.channels.ably.refusals import not_read, not_sent
from perdure.channels.ably.wire import all_delivered, to_change, to_publish
from perdure.errors import ContinuityLost, SendFailed
from perdure.session.channel import Draft, HistoryPage, Revision
from perdure.session.message import WireMessage

_PAGE: Final = 100
_MOST_OF_A_PAGE: Final = 1000
_PAGES_KEPT: Final = 8
_Result = TypeVar("_Result")


class AblyChannels:
    """Sessions on Ably: each is the channel of its name, and all share one client.

    The client is made and closed by the caller, in the event loop that uses it. What is not
    answered within `answer_seconds` has failed. The namespace of the channels has to allow message
    updates and appends.
    """

    def __init__(self, client: Client, *, answer_seconds: float = 10.0) -> None:
        self._attachments = Attachments(client, answer_seconds)
        self._answer_seconds = answer_seconds

    def channel(self, session: str, client_id: str) -> AblyChannel:
        """Return a session as one of its clients has it; the key or token has to allow that id."""
        return AblyChannel(self._attachments, session, client_id, self._answer_seconds)


class AblyChannel:
    """A `Channel` of Ably; `AblyChannels` makes them.

    What is published again is not written again where all drafts of the call are the same as
    before: those of one call are one message to Ably.
    """

    def __init__(
        self, attachments: Attachments, session: str, client_id: str, answer_seconds: float
    ) -> None:
        self._attachments = attachments
        self._session = session
        self._client_id = client_id
        self._writer = operations.MessageOperation(client_id=client_id) if client_id else None
        self._answer_seconds = answer_seconds
        self._pages: dict[tuple[str | None, int], Page] = {}
        """By what a page of history comes before, and its limit: the page that it comes after."""

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        """Write messages. Durable when it returns: all of them, but those that are ephemeral."""
        if not drafts:
            return []
        # Ably asks for one id of them all, without a colon, and the place of each behind it.
        first = sha256(drafts[0].message_id.encode("utf-8", "surrogatepass")).hexdigest()
        named = [f"{first}:{place}" for place in range(len(drafts))]
        messages = [
            to_publish(draft, message_id, self._client_id)
            for draft, message_id in zip(drafts, named, strict=True)
        ]
        channel = self._attachments.channel(self._session)
        result = await self._sent(channel.publish(messages))
        return [serial or "" for serial in result.serials]

    async def append(self, serial: str, change: Revision) -> str:
        """Add to a message. Durable when it returns: the addition."""
        connection = self._attachments.connection_id
        channel = self._attachments.channel(self._session)
        result = await self._sent(channel.append_message(to_change(serial, change), self._writer))
        if connection != self._attachments.connection_id:
            # The client sends again what a lost connection left open, and the next connection does
            # not know that it had arrived: the text may stand there twice.
            raise SendFailed(
                f"the connection was lost while {serial} was appended to, perhaps twice"
            )
        return result.version_serial or ""

    async def update(self, serial: str, change: Revision) -> str:
        """Replace a message. Durable when it returns: the data and the headers."""
        channel = self._attachments.channel(self._session)
        result = await self._sent(channel.update_message(to_change(serial, change), self._writer))
        return result.version_serial or ""

    async def history(self, before: str | None = None, limit: int = _PAGE) -> HistoryPage:
        """Return messages as they stand, newest first.

        Ably knows no page before a serial. The one behind a page that was read is gone on to;
        any other is looked for from the newest message on.
        """
        channel = self._attachments.channel(self._session)
        size = min(limit, _MOST_OF_A_PAGE)
        last = self._pages.get((before, limit))
        page = await self._read(
            channel.history(direction="backwards", limit=size) if last is None else last.next()
        )
        while True:
            found = all_delivered(page.items)
            messages = [m for m in found if before is None or m.serial < before]
            if messages or not page.has_next():
                break
            page = await self._read(page.next())
        if more := page.has_next():
            while len(self._pages) >= _PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
            self._pages[min(message.serial for message in messages), limit] = page
        return HistoryPage(messages, more)

    @asynccontextmanager
    async def subscribe(
        self, after: str | None = None
    ) -> AsyncGenerator[AsyncIterator[WireMessage], None]:
        """Attach, and give every delivery behind a cursor, or from now on.

        What is behind a cursor is read from history, newest first, up to a page without anything
        newer than the cursor; messages that changed since then come whole.
        """
        async with self._attachments.reading(self._session) as live:
            deliveries = self._behind(after, live)
            try:
                yield deliveries
            finally:
                await deliveries.aclose()

    async def _behind(
        self, after: str | None, live: Deliveries
    ) -> AsyncGenerator[WireMessage, None]:
        # Attached before history is read, so that nothing falls in between.
        missed = [] if after is None else await self._since(after)
        seen = {message.serial: message.version for message in missed}
        for message in sorted(missed, key=lambda message: message.version):
            yield message
        async for delivery in live.follow():
            if delivery.version > seen.get(delivery.serial, ""):
                yield delivery

    async def _since(self, after: str) -> list[WireMessage]:
        """Return what changed since a cursor; raises `ContinuityLost` for one of nothing here."""
        read: list[WireMessage] = []
        more, before = True, None
        while more:
            page = await self.history(before)
            read += page.messages
            before = min((message.serial for message in read), default=None)
            more = page.more and any(message.version > after for message in page.messages)
        missed = [message for message in read if message.version > after]
        # Only the last version of a message is told, so only the last of all can be recognised.
        if not any(m.serial <= after if missed else m.version == after for m in read):
            raise ContinuityLost(
                f"the history of the channel {self._session!r} does not go back to {after!r}, or"
                " never had it; read it from its end"
            )
        return missed

    async def _sent(self, write: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await write
        except Exception as error:
            raise not_sent(error, self._session) from error

    async def _read(self, page: Awaitable[Page]) -> Page:
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await page
        except Exception as error:
            raise not_read(error, self._session) from error
