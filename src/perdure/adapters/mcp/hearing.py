from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from perdure.canonical import encode

_OF_THE_PROTOCOL: Final = {"notifications/cancelled", "notifications/subscriptions/acknowledged"}


class Hearing:
    """Collects what a server notifies of while a request is under way, as JSON-RPC messages."""

    def __init__(self, most: int) -> None:
        self.events: list[str] = []
        self._most = most
        self._full = asyncio.Event()

    def hear(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Keep a notification, unless it is about the request itself."""
        if method in _OF_THE_PROTOCOL:
            return
        message = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        self.events.append(encode(message, what="the notification").decode())
        if len(self.events) >= self._most:
            self._full.set()

    async def until_full(
        self, listen: Callable[[], Awaitable[dict[str, Any]]], seconds: float
    ) -> dict[str, Any]:
        """Listen until the server ends it, enough was heard, or the time is over."""
        listening = asyncio.ensure_future(listen())
        full = asyncio.create_task(self._full.wait())
        try:
            await asyncio.wait(
                {listening, full}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if listening.done():
                return listening.result()
            return {}
        finally:
            full.cancel()
            listening.cancel()
            await asyncio.wait({listening, full})
