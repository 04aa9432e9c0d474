from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.server.frames import KEEP_ALIVE
from perdure.server.limits import Limits
from perdure.server.traffic import Slot

_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
ABORT: Final = "perdure.abort"
"""The extension of a server that lets a response break its connection off.

Others close a connection whose response is left unfinished, once its reader has taken the rest.
"""

_log: Final = logging.getLogger("perdure.server")


class EventStream(Response):
    """A response that is sent as it comes into being, until that or the server ends.

    Nothing is kept for a reader who does not read: the next frame is asked for when the one before
    has been taken, and one that takes too long ends the stream. A reader who leaves ends the
    reading alone. `farewell` is the last frame where the server closes first.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        slot: Slot,
        closing: asyncio.Event,
        limits: Limits,
        farewell: Callable[[], bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._slot = slot
        self._closing = closing
        self._limits = limits
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        gone = asyncio.create_task(_gone(receive))
        closing = asyncio.create_task(self._closing.wait())
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            if scope["method"] == "HEAD":
                await self._send(send, b"", more=False)
            else:
                await self._send_frames(send, gone, closing)
        except TimeoutError:
            _log.info("a reader took nothing for %g s and was let go", self._limits.send_seconds)
            if ABORT in scope.get("extensions", {}):
                scope["extensions"][ABORT]["abort"]()
                await gone
        finally:
            self._slot.release()
            gone.cancel()
            closing.cancel()
            await asyncio.gather(gone, closing, return_exceptions=True)
            await self._frames.aclose()

    async def _send_frames(
        self, send: Send, gone: asyncio.Task[None], closing: asyncio.Task[bool]
    ) -> None:
        upcoming: asyncio.Task[bytes | None] | None = None
        try:
            while not gone.done():
                if closing.done():
                    await self._send(send, self._farewell())
                    break
                upcoming = upcoming or asyncio.create_task(anext(self._frames, None))
                await asyncio.wait(
                    {upcoming, gone, closing},
                    timeout=self._limits.keep_alive_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if upcoming.done():
                    frame, upcoming = upcoming.result(), None
                    if frame is None:
                        break
                    await self._send(send, frame)
                elif not closing.done() and not gone.done():
                    await self._send(send, KEEP_ALIVE)
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
        if not gone.done():
            await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send a part of the body; raises `TimeoutError` where it is not taken in time."""
        async with asyncio.timeout(self._limits.send_seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive) -> None:
    """Return once the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
