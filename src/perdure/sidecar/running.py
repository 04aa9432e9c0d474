from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import uvicorn

from perdure.sidecar.connection import Connection
from perdure.sidecar.sidecar import Sidecar

_BESIDE: Final = 200
"""How many connections there may be beyond the requests that are open, to be told to come back."""


class SidecarServer(uvicorn.Server):
    """Serves a sidecar over HTTP, and drains it as soon as it is to end.

    `await serve()` returns once `should_exit` has been set and all requests have been answered.
    Signals are left to the program. `started` is told of the address.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        *,
        host: str,
        port: int,
        started: Callable[[str], None] | None = None,
    ) -> None:
        limits = sidecar.limits
        config = uvicorn.Config(
            sidecar,
            host=host,
            port=port,
            http=Connection,
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="off",
            limit_concurrency=limits.requests + _BESIDE,
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_graceful_shutdown=max(1, round(limits.drain_seconds)) + 5,
            server_header=False,
        )
        super().__init__(config)
        self._sidecar = sidecar
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        if self._started is not None:
            self._started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is open, and close."""
        await self._sidecar.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the program."""
        yield
