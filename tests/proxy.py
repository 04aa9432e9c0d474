"""A way to a database server that is cut where a test says, before a request or after its reply."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_CHUNK_BYTES: Final = 1 << 20
_READY: Final = b"Z\x00\x00\x00\x05"
"""How the last message of a reply begins, which has one byte more."""


class Cut(enum.Enum):
    """When a connection is lost: with the request on its way, or with the reply to it."""

    BEFORE = "before"
    AFTER = "after"


class Proxy:
    """Passes everything on, until it is told to lose the connection of a request to come."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._parts = parts
        self._cut: Cut | None = None
        self._requests_left = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.url = ""

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        self.url = urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))
        return server

    def lose(self, cut: Cut, after_requests: int) -> None:
        """Lose the connection of one request, after some others."""
        self._cut, self._requests_left = cut, after_requests

    def disarm(self) -> bool:
        """Lose nothing more; return whether nothing was lost since the last `lose`."""
        armed, self._cut = self._cut is not None, None
        return armed

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            upstream, downstream = await asyncio.open_connection(self._host, self._port)
            replies = asyncio.create_task(_pass_on(upstream, writer))
            try:
                await self._requests(reader, downstream, replies, upstream)
            finally:
                replies.cancel()
                await asyncio.wait([replies])
                downstream.close()
        writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        downstream: asyncio.StreamWriter,
        replies: asyncio.Task[None],
        upstream: asyncio.StreamReader,
    ) -> None:
        while request := await reader.read(_CHUNK_BYTES):
            cut = self._due()
            if cut is Cut.BEFORE:
                return
            if cut is Cut.AFTER:
                replies.cancel()
                await asyncio.wait([replies])
            downstream.write(request)
            await downstream.drain()
            if cut is Cut.AFTER:
                await _whole_reply(upstream)
                return

    def _due(self) -> Cut | None:
        if self._cut is None:
            return None
        if self._requests_left:
            self._requests_left -= 1
            return None
        cut, self._cut = self._cut, None
        self.cuts += 1
        return cut


@asynccontextmanager
async def proxy(url: str) -> AsyncGenerator[Proxy]:
    """Keep a proxy in front of the server of a URL."""
    it = Proxy(url)
    server = await it.open()
    try:
        yield it
    finally:
        server.close()
        await it.close()
        await server.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _whole_reply(reader: asyncio.StreamReader) -> None:
    """Read a reply up to its end, at which what was asked for is committed."""
    reply = b""
    while reply[-6:-1] != _READY:
        reply += await reader.read(_CHUNK_BYTES) or _READY + b"I"
