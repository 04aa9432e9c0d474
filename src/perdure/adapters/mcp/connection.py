from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import Any, TypeAlias, cast

import msgspec
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perdure.adapters.mcp.answers import Answers, Questions
from perdure.adapters.mcp.http_server import HttpServer
from perdure.adapters.mcp.sending import Heard, Line
from perdure.errors import EffectNotSent

Transport: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Makes what holds the streams of one connection: messages to read, and to write."""

Server: TypeAlias = str | HttpServer | StdioServerParameters | Transport
"""A server as it is reached: a URL, a command, or whatever makes a connection."""


class Hello(msgspec.Struct, frozen=True):
    """What a connection is opened with: requests with the same may share one."""

    name: str
    version: str
    capabilities_json: str


class _Capabilities(msgspec.Struct):
    """What of a client's capabilities this side does not find out by itself."""

    extensions: dict[str, dict[str, Any]] | None = None


class Connection:
    """An open session with a server.

    It lives in a task of its own: what ends it does not end who asks. `users` are those who share
    it right now.
    """

    def __init__(
        self,
        server: Server,
        hello: Hello,
        answers: Answers,
        *,
        legacy: bool = False,
        heard: Heard | None = None,
    ) -> None:
        self._server = server
        self._hello = hello
        self.questions = Questions()
        self._answers = self.questions.counted(answers)
        self._legacy = legacy
        self._heard = heard
        self.users = 0
        self._lost = False
        self._over = asyncio.Event()
        self._opened = asyncio.Event()
        self._session: ClientSession | None = None
        self._line: Line | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def session(self) -> ClientSession:
        """The session, once it is open."""
        assert self._session is not None
        return self._session

    @property
    def line(self) -> Line:
        """What requests are sent on, once it is open."""
        assert self._line is not None
        return self._line

    @property
    def modern(self) -> bool:
        """Whether the protocol is one without sessions, in which servers ask back by results."""
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def ended(self) -> bool:
        """Whether it is known to be of no more use."""
        return self._lost or self._over.is_set() or self._task is None or self._task.done()

    async def open(self, seconds: float) -> None:
        """Connect and agree on a protocol; raises `EffectNotSent` where that cannot be done."""
        # Of no operation in particular: whoever comes next may share it.
        self._task = asyncio.create_task(self._live(), context=Context())
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait(
                {self._task, opened}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            opened.cancel()
        if not self._opened.is_set():
            slow = not self._task.done()
            await self.close()
            error = None if self._task.cancelled() else self._task.exception()
            why = f"it took over {seconds} seconds" if slow else _said(error)
            raise EffectNotSent(f"the MCP server cannot be reached: {why}") from error

    def give_up(self) -> None:
        """Let nobody else use it; what is under way on it ends as it will."""
        self._lost = True

    async def leave(self) -> None:
        """Count one user less, and close what has none left and is of no more use."""
        self.users -= 1
        if self.users == 0 and self.ended:
            await self.close()

    async def close(self) -> None:
        """End the session, and the server if it was started for it."""
        self._over.set()
        if self._task is not None:
            if not self._opened.is_set():
                self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # it was told to whoever was asking

    async def _live(self) -> None:
        async with _streams(self._server) as (read, write):
            line = Line(read, write, self._heard)
            async with _session(line, self._hello, self._answers) as session:
                await _negotiate(session, legacy=self._legacy)
                self._session, self._line = session, line
                self._opened.set()
                await self._over.wait()


def _streams(server: Server) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    match server:
        case str():
            return HttpServer(server).connect()
        case HttpServer():
            return server.connect()
        case StdioServerParameters():
            return stdio_client(server)
        case _:
            return server()


@asynccontextmanager
async def _session(line: Line, hello: Hello, answers: Answers) -> AsyncGenerator[ClientSession]:
    capabilities = msgspec.json.decode(hello.capabilities_json, type=_Capabilities)
    async with ClientSession(
        dispatcher=line,
        client_info=Implementation(name=hello.name, version=hello.version),
        elicitation_callback=answers.elicitation,
        sampling_callback=answers.sampling,
        list_roots_callback=answers.roots,
        extensions=capabilities.extensions or None,
    ) as session:
        yield session


async def _negotiate(session: ClientSession, *, legacy: bool) -> None:
    if not legacy:
        try:
            await session.discover()
        except (MCPError, ValidationError, RuntimeError):
            pass  # no evidence of a server of the newer protocol
        else:
            return
    await session.initialize()


def _said(error: BaseException | None) -> str:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _said(group.exceptions[0])
    return "it ended at once" if error is None else f"{type(error).__name__}: {error}"
