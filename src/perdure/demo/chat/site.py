from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from perdure.demo.chat.crew import Crew, Worker
from perdure.demo.shop import Shop

LOOPBACK: Final = ("127.0.0.1", "localhost")

_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Backstage(msgspec.Struct, frozen=True):
    """What the page shows beside the conversation."""

    workers: list[Worker]
    refunds: int
    url: str


class Site:
    """The chat page, and what goes on behind it: who works, how often money went back, the kill."""

    def __init__(self, server: ASGIApp, crew: Crew, shop: Shop, url: str) -> None:
        self._server = server
        self._crew = crew
        self._shop = shop
        self._url = url
        page = files("perdure.demo.chat").joinpath("page")
        self._files = {file.name: file.read_bytes() for file in page.iterdir()}

    def build(self) -> Starlette:
        """Return the ASGI app: the page, and the sessions of the server under it."""
        routes = [
            Route("/", self.page),
            Route("/page/{name}", self.page),
            Route("/backstage", self.backstage),
            Route("/backstage/kill", self.kill, methods=["POST"]),
            Mount("/", self._server),
        ]
        # A page elsewhere whose name leads here must not get what asks for no token.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK, www_redirect=False)
        return Starlette(routes=routes, middleware=[hosts])

    async def page(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params.get("name", "index.html")
        kind = _KINDS.get(name.rpartition(".")[2])
        if kind is None or name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], headers={**_HEADERS, "content-type": kind})

    async def backstage(self, request: Request) -> Response:
        """Return who works, and how often money went back."""
        del request
        told = _Backstage(self._crew.workers, len(self._shop.book()), self._url)
        return _document(told)

    async def kill(self, request: Request) -> Response:
        """Kill the worker."""
        # Browsers ask before they send this to a server for a page of another.
        if request.headers.get("content-type") != "application/json":
            raise HTTPException(415)
        return _document({"killed": self._crew.kill()})


def _document(told: object) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")
