from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from perdure.adapters.mcp.sending import sending

_UNREACHED: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True)
class HttpServer:
    """An MCP server over streamable HTTP, as a worker reaches it.

    `headers` and `auth` are where credentials belong: they go with every request, and nothing of
    them is recorded. `transport` is used instead of the network. The seconds bound how long
    connecting takes, and how long the server may be silent.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)
    transport: httpx2.AsyncBaseTransport | None = None
    connect_seconds: float = 30.0
    silent_seconds: float = 300.0

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[tuple[Any, Any]]:
        """Hold the streams of a connection, which is made with the first request."""
        timeout = httpx2.Timeout(self.connect_seconds, read=self.silent_seconds)
        inner = self.transport or httpx2.AsyncHTTPTransport()
        async with (
            httpx2.AsyncClient(
                transport=Guard(inner), headers=dict(self.headers), auth=self.auth, timeout=timeout
            ) as client,
            streamable_http_client(self.url, http_client=client) as streams,
        ):
            yield streams


class Guard(httpx2.AsyncBaseTransport):
    """Notes which requests never left, and answers for a server that cannot be reached.

    An exception instead would end the connection for every request on it.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response, or one that says what went wrong."""
        under_way = sending()
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if under_way is not None:
                under_way.lost = True
                if isinstance(error, _UNREACHED):
                    under_way.miss()
            return _stand_in(request, error)
        if under_way is not None and response.status_code >= 400:
            under_way.status = response.status_code
        response.stream = _Body(response.stream)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of a response, which just ends where the connection does."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                yield piece
        except httpx2.TransportError:
            if (under_way := sending()) is not None:
                under_way.lost = True

    async def aclose(self) -> None:
        await self._inner.aclose()


def _stand_in(request: httpx2.Request, error: Exception) -> httpx2.Response:
    """Return a response to a request that has none."""
    try:
        asked: Any = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        asked = None
    asked_id = cast("dict[str, Any]", asked).get("id") if isinstance(asked, dict) else None
    if asked_id is None:
        return httpx2.Response(503, request=request)
    said = {"code": CONNECTION_CLOSED, "message": f"{type(error).__name__}: {error}"}
    document = {"jsonrpc": "2.0", "id": asked_id, "error": said}
    return httpx2.Response(503, json=document, request=request)
