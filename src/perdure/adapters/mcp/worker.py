from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

import msgspec
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from perdure.adapters.mcp.answers import Answers
from perdure.adapters.mcp.connection import Connection, Hello, Server
from perdure.adapters.mcp.endings import ending_of, is_lost
from perdure.adapters.mcp.exchange import Exchange, list_tools
from perdure.adapters.mcp.hearing import Hearing
from perdure.adapters.mcp.sending import Heard, Sending
from perdure.adapters.mcp.tool_effects import Declared, ToolEffects, verdict_of
from perdure.asked_effect import key_of
from perdure.canonical import encode
from perdure.errors import EffectNotSent, InvalidMcpResponse, OperationFailed, PerdureError
from perdure.journal.failures import failure_of
from perdure.journal.invocation import Invocation
from perdure.journal.payloads import (
    McpRequest,
    McpResponse,
    encode_mcp_response,
    parse_mcp_request,
)
from perdure.journal.record import Failure, Outcome, Success
from perdure.retry import RetryPolicy
from perdure.terms import Terms

_LISTEN: Final = "subscriptions/listen"


class McpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker speaks to its server.

    `timeout_seconds` bounds a request, None for no bound; `connect_seconds` how long a connection
    takes. `retry` is for requests that got no answer and have no effect, and for what was not sent;
    None for none. `legacy` insists on the protocol with sessions, which has tasks. Listening ends
    after `listen_events` events or `listen_seconds`.
    """

    timeout_seconds: float | None = 60.0
    connect_seconds: float = 30.0
    retry: RetryPolicy | None = msgspec.field(default_factory=RetryPolicy)
    legacy: bool = False
    listen_events: int = 16
    listen_seconds: float = 30.0
    answers: Answers = msgspec.field(default_factory=Answers)


class McpWorker:
    """Performs the MCP requests of runs: it alone knows the server, and has the credentials.

        parcels = McpWorker(HttpServer("https://…/mcp", headers={"Authorization": token}))
        key = (OperationKind.MCP_REQUEST, "parcels")
        handlers.register(*key, parcels)
        runtime = EmbeddedRuntime(context, handlers, effects={key: parcels.terms})

    Inside of `async with worker:` requests share a connection, which is made anew when it was lost.
    Outside of it, each has one of its own, as has each that collects events. What tools do to the
    world is in `tools`, by their names; hints of the server count if it is `trusted`.
    """

    def __init__(
        self,
        server: Server,
        *,
        tools: Mapping[str, Declared] | None = None,
        trusted: bool = False,
        options: McpOptions | None = None,
    ) -> None:
        self._server = server
        self._effects = ToolEffects(tools or {}, trusted=trusted)
        self._options = options or McpOptions()
        self._kept: dict[Hello, Connection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop = None
        kept, self._kept = list(self._kept.values()), {}
        await asyncio.gather(*(connection.close() for connection in kept))

    async def __call__(self, invocation: Invocation) -> Outcome:
        """Perform the request of an invocation and return what it came to.

        An error of the protocol is a `Failure`, called `EffectRejected` where the server cannot
        have done anything. Raises `EffectNotSent` where it got nothing, and any other exception
        where nobody knows what became of it.
        """
        request = parse_mcp_request(invocation.input_json)
        effect = self._effects.of(request, invocation.handler_id)
        told = await self._perform(request, key_of(invocation, effect))
        if isinstance(told, Failure):
            return told
        try:
            return Success(encode_mcp_response(told))
        except InvalidMcpResponse as error:
            return failure_of(error)  # whatever it did, it has done

    async def terms(self, invocation: Invocation) -> Terms:
        """Return how an invocation is performed; asks a trusted server for its hints, once."""
        try:
            request = parse_mcp_request(invocation.input_json)
        except PerdureError:
            return Terms()  # the worker refuses it
        if self._effects.needs_hints(request):
            await self._learn(request)
        effect = self._effects.of(request, invocation.handler_id)
        return Terms(effect=effect, retry=self._options.retry, verdict_of=verdict_of)

    async def send(self, request: McpRequest) -> McpResponse:
        """Send a request at once, outside of any run; nothing of it is recorded.

        Raises `OperationFailed` for an error of the protocol, and otherwise as a call does.
        """
        told = await self._perform(request, None)
        if isinstance(told, McpResponse):
            return told
        raise OperationFailed(
            request.method, code=told.error_name, message=told.message, type_name=told.type_name
        )

    async def _perform(
        self, request: McpRequest, operation_key: str | None
    ) -> McpResponse | Failure:
        sending = Sending({header.name: header.value for header in request.headers})
        hearing = Hearing(self._options.listen_events) if request.deliver_events else None
        async with self._connected(_hello(request), hearing) as connection:
            exchange = Exchange(
                connection,
                request,
                sending,
                timeout_seconds=None
                if request.method == _LISTEN
                else self._options.timeout_seconds,
                operation_key=operation_key,
            )
            try:
                if request.method == _LISTEN and hearing is not None:
                    result = await hearing.until_full(exchange.finish, self._options.listen_seconds)
                else:
                    result = await exchange.finish()
            except MCPError as error:
                if is_lost(error, sending):
                    connection.give_up()
                if hearing is None or not hearing.events or request.method != _LISTEN:
                    has_effect = operation_key is not None
                    trusted = self._effects.trusted
                    return ending_of(error, sending, has_effect=has_effect, trusted=trusted)
                result = {}  # what was heard before the stream broke was heard
        events = () if hearing is None else tuple(hearing.events)
        return McpResponse(result_json=encode(result).decode(), events_json=events)

    async def _learn(self, request: McpRequest) -> None:
        try:
            async with self._connected(_hello(request), None) as connection:
                tools = await list_tools(connection, self._options.timeout_seconds)
        except (EffectNotSent, MCPError, TimeoutError, ValidationError):
            return  # so nothing is known to be harmless
        self._effects.hints = {tool.name: tool.annotations for tool in tools}

    @asynccontextmanager
    async def _connected(self, hello: Hello, hearing: Hearing | None) -> AsyncGenerator[Connection]:
        if hearing is None and self._loop is asyncio.get_running_loop():
            connection = await self._shared(hello)
            try:
                yield connection
            finally:
                await connection.leave()
            return
        connection = self._connection(hello, None if hearing is None else hearing.hear)
        await connection.open(self._options.connect_seconds)
        try:
            yield connection
        finally:
            await connection.close()

    async def _shared(self, hello: Hello) -> Connection:
        async with self._lock:
            connection = self._kept.get(hello)
            if connection is None or connection.ended:
                connection = self._connection(hello, None)
                await connection.open(self._options.connect_seconds)
                self._kept[hello] = connection
            connection.users += 1
            return connection

    def _connection(self, hello: Hello, heard: Heard | None) -> Connection:
        options = self._options
        return Connection(self._server, hello, options.answers, legacy=options.legacy, heard=heard)


def _hello(request: McpRequest) -> Hello:
    return Hello(request.client_name, request.client_version, request.capabilities_json)
