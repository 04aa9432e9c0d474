from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from perdure.channels.stored.feed import Feed
from perdure.channels.stored.signal import Signal
from perdure.clock import Clock
from perdure.errors import (
    ContinuityLost,
    SessionClosed,
    SessionError,
    StorageBusy,
    StorageError,
    SubscriptionFailed,
)
from perdure.session.message import Action, WireMessage
from perdure.session.store import Addition, SessionStore, SessionWrite

_LOOKING_SECONDS: Final = 0.05
_PAGE: Final = 100
_AT_ONCE: Final = 4
"""How many sessions are read at the same time, so that others get to the store in between."""

_NOTHING: Final = "0" * 16
"""The version of a session that nothing was written to."""


class Feeds:
    """Reads once what all readers in this process are given, of each session that has any.

    What this process appends is passed on without being read. For what others write it looks every
    50 ms.
    """

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._feeds: dict[str, Feed] = {}
        self._behind: set[str] = set()
        self._look = Signal(clock)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._closed = False

    @asynccontextmanager
    async def subscribe(
        self, session: str, after: str | None
    ) -> AsyncGenerator[AsyncIterator[WireMessage], None]:
        """Attach a reader; see `Channel.subscribe`.

        Raises `ContinuityLost` and `SubscriptionFailed` on entering, and from the iterator.
        """
        cursor, head = await self._begin(session, after)
        feed = self._join(session, head)
        try:
            async with aclosing(self._deliveries(session, feed, cursor)) as deliveries:
                yield deliveries
        finally:
            self._leave(session, feed)

    def written(self, write: SessionWrite, outcome: Sequence[str]) -> None:
        """Pass on what this process has written.

        Nobody else can have written between two versions that follow each other. A publication is
        read, since the store may have had it before, and so is what becomes of a whole message.
        """
        feed = self._feeds.get(write.session)
        if feed is None:
            return
        if isinstance(write, Addition) and feed.follows(outcome[0]):
            feed.take([_appended(write, outcome[0], self._clock.now())])
        else:
            self._behind.add(write.session)
            self._look.give()

    async def run(self) -> None:
        """Keep the feeds up to date, for ever."""
        due = self._clock.monotonic()
        while True:
            left = due - self._clock.monotonic()
            await self._look.wait(max(0.0, left) if self._feeds else None)
            if self._clock.monotonic() >= due:
                await self._ask()
                due = self._clock.monotonic() + _LOOKING_SECONDS
            behind, self._behind = self._behind & self._feeds.keys(), set()
            async with asyncio.TaskGroup() as reading:
                for session in behind:
                    reading.create_task(self._catch_up(session, self._feeds[session]))

    def close(self) -> None:
        """Let no more readers in, and send away those who are there."""
        self._closed = True
        for session, feed in list(self._feeds.items()):
            self._lose(session, feed, _closed())

    async def _begin(self, session: str, after: str | None) -> tuple[str, str]:
        """Return the cursor that a reader begins at, and a version that the session has come to."""
        if after is None:
            head = await self._head(session)
            return head, head
        if len(after) != len(_NOTHING) or not after.isdecimal():
            raise ContinuityLost(f"{after!r} is no cursor of this channel; read a snapshot")
        feed = self._feeds.get(session)
        if feed is not None and feed.since <= after <= feed.head:
            return after, feed.head
        head = await self._head(session)
        await self._read(session, after, 1)
        return after, head

    async def _deliveries(
        self, session: str, feed: Feed, cursor: str
    ) -> AsyncGenerator[WireMessage, None]:
        """Yield what is behind a cursor: from the store, and then from the feed."""
        while True:
            grown, since = feed.grown, feed.since
            if cursor < since:
                page = await self._read(session, cursor, _PAGE)
                for delivery in page:
                    cursor = delivery.version
                    yield delivery
                # Of what was ephemeral nothing may be left.
                cursor = cursor if page else since
            elif delivery := feed.next(cursor):
                cursor = delivery.version
                yield delivery
            elif feed.lost is not None:
                raise feed.lost
            else:
                await grown.wait()

    async def _head(self, session: str) -> str:
        try:
            heads = await self._store.session_heads([session])
        except StorageError as error:
            raise _not_attached(error) from error
        return heads.get(session, _NOTHING)

    async def _read(self, session: str, after: str, limit: int) -> Sequence[WireMessage]:
        try:
            return await self._store.session_deliveries(session, after, limit)
        except StorageError as error:
            raise _not_attached(error) from error

    async def _ask(self) -> None:
        """Note the sessions that have come to more than their feeds."""
        asked = dict(self._feeds)
        try:
            heads = await self._store.session_heads(list(asked))
        except StorageBusy:
            return
        except Exception as error:  # noqa: BLE001  a boundary: readers are told whatever it is
            for session, feed in asked.items():
                self._lose(session, feed, _not_attached(error))
            return
        self._behind |= {name for name in asked if heads.get(name, _NOTHING) != asked[name].head}

    async def _catch_up(self, session: str, feed: Feed) -> None:
        more = True
        while more:
            try:
                async with self._places:
                    page = await self._store.session_deliveries(session, feed.head, _PAGE)
            except StorageBusy:
                return
            except Exception as error:  # noqa: BLE001  a boundary: readers are told whatever it is
                self._lose(session, feed, error)
                return
            feed.take(page)
            more = len(page) == _PAGE

    def _join(self, session: str, head: str) -> Feed:
        if self._closed:
            raise _closed()
        feed = self._feeds.get(session)
        if feed is None:
            feed = self._feeds[session] = Feed(head)
            self._look.give()
        feed.readers += 1
        return feed

    def _leave(self, session: str, feed: Feed) -> None:
        feed.readers -= 1
        if not feed.readers:
            self._drop(session, feed)

    def _lose(self, session: str, feed: Feed, error: Exception) -> None:
        feed.lose(error if isinstance(error, SessionError) else _not_attached(error))
        self._drop(session, feed)

    def _drop(self, session: str, feed: Feed) -> None:
        if self._feeds.get(session) is feed:
            del self._feeds[session]


def _appended(write: Addition, version: str, now: float) -> WireMessage:
    return WireMessage(
        serial=write.serial,
        version=version,
        action=Action.APPEND,
        data=write.change.data,
        client_id=write.client_id,
        timestamp=now,
        transport=write.change.transport,
        codec=write.change.codec,
    )


def _not_attached(error: Exception) -> SubscriptionFailed:
    failed = SubscriptionFailed(f"deliveries cannot be read: {error}; attach again")
    failed.__cause__ = error
    return failed


def _closed() -> SessionClosed:
    return SessionClosed("the channels are closed; open the App again to read them")
