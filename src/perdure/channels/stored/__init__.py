from __future__ import annotations

import asyncio

from perdure.channels.stored.channel import StoredChannel
from perdure.channels.stored.feeds import Feeds
from perdure.channels.stored.writer import Writer
from perdure.clock import Clock
from perdure.errors import InvalidSessionArgument
from perdure.fence import Fence
from perdure.session.store import SessionStore

__all__ = ["StoredChannel", "StoredChannels"]


class StoredChannels:
    """The sessions of a store as the channels of one process: an App has one of these.

    Whatever it does in the background ends with it. It belongs to one event loop.
    """

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._feeds = Feeds(store, clock)
        self._writer = Writer(store, clock, self._feeds.written)
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Let channels write and read. Raises `InvalidSessionArgument` a second time."""
        if self._writing is not None:
            raise InvalidSessionArgument("the channels were opened before; make others")
        self._writing = asyncio.create_task(self._writer.run())
        self._reading = asyncio.create_task(self._feeds.run())

    async def close(self) -> None:
        """Write what waits, and send readers away. The store stays the caller's to close."""
        self._writer.close()
        self._feeds.close()
        if self._writing is None or self._reading is None:
            return
        self._reading.cancel()
        await asyncio.wait([self._writing, self._reading])

    def channel(self, session: str, client_id: str, fence: Fence | None = None) -> StoredChannel:
        """Return the channel of a session as a client has it; an agent's has its run's fence."""
        return StoredChannel(
            session, client_id, fence, store=self._store, writer=self._writer, feeds=self._feeds
        )
