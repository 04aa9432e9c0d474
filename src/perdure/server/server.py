from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.app import App
from perdure.clock import Clock, SystemClock
from perdure.errors import PerdureError
from perdure.server.chat_routes import ChatRoutes
from perdure.server.gate import Gate
from perdure.server.grants import Authorize
from perdure.server.limits import Limits
from perdure.server.problems import Document, say_failed, say_refused
from perdure.server.service import Service
from perdure.server.session_routes import SessionRoutes


class Server:
    """The ASGI app that `create_server` returns."""

    def __init__(self, service: Service, starlette: Starlette) -> None:
        self._service = service
        self._starlette = starlette

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._service.gate.traffic.streams

    @property
    def limits(self) -> Limits:
        """What this process bears."""
        return self._service.limits

    def hand_over(self) -> None:
        """End every stream with where to go on from, and every one that is asked for from now on.

        To be called as the process begins to shut down, while it still waits for its responses.
        """
        self._service.closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the process."""
        await self._starlette(scope, receive, send)


def create_server(
    app: App,
    *,
    authorize: Authorize,
    turn: str | None = None,
    limits: Limits | None = None,
    works: bool = True,
    opens: bool = True,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = ("*",),
    clock: Clock | None = None,
) -> Server:
    """Return an ASGI app that serves the sessions of an App.

    `authorize` returns what a token grants: `SignedTokens`, a function of your own, or `anyone`,
    which asks for no token. `turn` names the function that answers, where the App has several. The
    App is opened for the life of the server, where that has one, and executes runs too unless
    `works` is False; with `opens=False` it stays yours to open, as where the server is mounted in
    another app. `origins` are those of pages elsewhere that browsers let in, such as
    `https://shop.example`, and `hosts` the names that requests may ask for.
    """
    now = clock or SystemClock()
    service = Service(app, Gate(authorize, limits or Limits(), now), now, turn)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        if not opens:
            yield
            return
        app.check_turn(turn)
        async with app if works else app.connect():
            yield

    async def health(_: Request) -> Response:
        """Say that requests are served, or no more."""
        closing = service.closing.is_set()
        return Document({"status": "closing" if closing else "ok"}, 503 if closing else 200)

    routes = [
        Route("/healthz", health, methods=["GET"]),
        *SessionRoutes(service).routes(),
        *ChatRoutes(service).routes(),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        Middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        ),
    ]
    starlette = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers={
            HTTPException: say_refused,
            PerdureError: say_failed,
            Exception: say_failed,
        },
    )
    return Server(service, starlette)
