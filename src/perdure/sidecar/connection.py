from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class _Patience:
    """Gives up what it waits for after a while."""

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to wait, unless it does."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._give_up)

    def end(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connection(H11Protocol):
    """A connection that is broken off where the head of a request, or its reader, is too slow.

    Whoever opens connections and says little would otherwise keep others out, and whoever takes
    nothing of an answer would keep that in memory.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        served: Any = self.config.app
        seconds: float = served.limits.body_seconds
        self._head = _Patience(seconds, transport.abort)
        self._reader = _Patience(seconds, transport.abort)
        self._head.begin()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        super().data_received(data)
        # What comes when all has been answered is the next head, or a body that nobody reads.
        if self.cycle and not self.cycle.response_complete:
            self._head.end()
        else:
            self._head.begin()

    def pause_writing(self) -> None:
        """Begin to wait for the reader of an answer."""
        super().pause_writing()
        self._reader.begin()

    def resume_writing(self) -> None:
        """Go on with an answer."""
        super().resume_writing()
        self._reader.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._head.end()
        self._reader.end()
        super().connection_lost(exc)
