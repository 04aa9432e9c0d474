from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.server.event_stream import ABORT
from perdure.server.server import Server

_BESIDE_STREAMS: Final = 200
"""How many connections there may be that are no streams."""


class _Connection(H11Protocol):
    """A connection that a response may break off, with what was not taken of it yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection."""
        super().connection_made(transport)
        served: ASGIApp = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            extensions = {**scope.get("extensions", {}), ABORT: {"abort": transport.abort}}
            await served({**scope, "extensions": extensions}, receive, send)

        self.app = app


class HttpServer(uvicorn.Server):
    """Serves over HTTP, and hands all streams over as soon as it is to end.

    `await serve()` returns once `should_exit` has been set and all responses have ended, or
    `drain_seconds` later. Signals are left to the program. `started` is told of the address.
    `app` is what is served where the server is mounted in another app; None for the server alone.
    """

    def __init__(
        self,
        server: Server,
        *,
        host: str,
        port: int,
        app: ASGIApp | None = None,
        drain_seconds: float = 10.0,
        started: Callable[[str], None] | None = None,
    ) -> None:
        limits = server.limits
        config = uvicorn.Config(
            app or server,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="on",
            limit_concurrency=limits.streams + _BESIDE_STREAMS,
            h11_max_incomplete_event_size=limits.header_bytes,
            http=_Connection,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
            server_header=False,
        )
        super().__init__(config)
        self._server = server
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        if self._started is not None:
            self._started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, wait for what else is under way, and close."""
        self._server.hand_over()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the program."""
        yield
