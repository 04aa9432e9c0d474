"""An MCP server in this process, and runs that ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from mcp.client._memory import InMemoryTransport
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as ToolContext
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ToolAnnotations,
)

from perdure import Context
from perdure.adapters.mcp import DurableRequestSequence, McpClient, McpWorker
from perdure.adapters.mcp.routing import ClientOptions
from perdure.journal import Binding, Failure, Handlers, OperationKind
from perdure.journal.payloads import EventRequest
from perdure.runtimes.embedded import EmbeddedRuntime

MCP = OperationKind.MCP_REQUEST
EVENT = OperationKind.EVENT_DELIVERY
KEY = "perdure/operation_key"
_TO_BEGIN = {"server/discover", "initialize"}


class Parcels:
    """A server that remembers what its tools were asked, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.keys: list[str | None] = []
        self.opened, self.closed = 0, 0
        self.server = MCPServer("parcels")
        add = self.server.add_tool
        add(self.send, annotations=ToolAnnotations(read_only_hint=False))
        add(self.quote, annotations=ToolAnnotations(idempotent_hint=True))
        add(self.track, annotations=ToolAnnotations(read_only_hint=True))
        self.lines: list[Any] = []
        self.hangs_up = 0

    async def send(self, city: str, ctx: ToolContext, note: str | None = "none") -> str:
        """Send a parcel to a city."""
        self._count("send", city, ctx)
        await self._answer()
        if city == "Atlantis":
            raise ValueError("no such city")
        await ctx.report_progress(1, 2, "packed")
        await ctx.report_progress(2, 2, "gone")
        return f"it is in {city}, {note}"

    async def quote(self, city: str, ctx: ToolContext) -> dict[str, int]:
        """Return what a parcel costs."""
        self._count("quote", city, ctx)
        return {"euros": 4 + len(city)}

    async def track(self, city: str, ctx: ToolContext) -> str:
        """Return where the parcel is."""
        self._count("track", city, ctx)
        await self._answer()
        return "on its way"

    def _count(self, tool: str, city: str, ctx: ToolContext) -> None:
        self.calls.append((tool, city))
        self.keys.append((ctx.request_context.meta or {}).get(KEY))

    async def _answer(self) -> None:
        """End the connection instead, as often as that is wanted."""
        if self.hangs_up:
            self.hangs_up -= 1
            await self.lines[-1].aclose()
            await asyncio.Event().wait()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any]:
        """Serve one connection."""
        self.opened += 1
        async with InMemoryTransport(self.server) as (read, write):
            self.lines.append(read)
            try:
                yield read, write
            finally:
                self.closed += 1


class Scripted:
    """A server that answers as it is told, by one function; `HANG_UP` ends the connection.

    What the function returns is a result, or the code of an error; `notify` are the methods of
    notifications before it.
    """

    HANG_UP = "hang up"

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any], *notify: str) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        self._notify = notify

    @property
    def methods(self) -> list[str]:
        """What it was asked, but for what clients ask to find out how to speak to it."""
        return [
            method for method, _ in self.asked if method not in {"server/discover", "initialize"}
        ]

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any]:
        """Serve one connection."""
        async with (
            create_client_server_memory_streams() as (near, (read, write)),
            anyio.create_task_group() as group,
        ):
            group.start_soon(self._serve, read, write)
            yield near
            group.cancel_scope.cancel()

    async def _serve(self, read: Any, write: Any) -> None:
        async for item in read:
            message = item.message
            if not isinstance(message, JSONRPCRequest):
                continue
            self.asked.append((message.method, message.params or {}))
            answer = self._result(*self.asked[-1])
            for method in self._notify if message.method in self.methods else ():
                note = JSONRPCNotification(jsonrpc="2.0", method=method, params={})
                await write.send(SessionMessage(note))
            if answer == self.HANG_UP:
                await write.aclose()
                return
            if isinstance(answer, int):
                error = ErrorData(code=answer, message="scripted")
                said: Any = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
            else:
                said = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=answer)
            await write.send(SessionMessage(said))

    def _result(self, method: str, params: dict[str, Any]) -> Any:
        told = self._answer(method, params)
        if told is not None:
            return told
        if method != "server/discover":
            return {}
        versions = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        return {**versions, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}


class Desk:
    """The handlers of a worker process: one MCP server, and somebody who takes events."""

    def __init__(self, worker: Any, *, deliver: Callable[[str], Awaitable[None]] | None = None):
        self.handlers = Handlers()
        self.handlers.register(MCP, "parcels", worker)
        self.events: list[str] = []
        self._worker = worker
        self._deliver = deliver

        @self.handlers.event_delivery("events")
        async def take(event: EventRequest) -> Failure | None:
            if self._deliver is not None:
                await self._deliver(event.event_json)
            self.events.append(event.event_json)

    def binding(self, context: Context, *, events: bool = True) -> Binding:
        """Return the binding of a run."""
        effects = {}
        if isinstance(self._worker, McpWorker):
            effects[MCP, "parcels"] = self._worker.terms
        runtime = EmbeddedRuntime(context, self.handlers, effects=effects)
        ids: Mapping[OperationKind, str] = {MCP: "parcels", **({EVENT: "events"} if events else {})}
        return Binding(run_id=context.run_id, runtime=runtime, handler_ids=ids)

    def client(self, context: Context, first: int = 1, **options: Any) -> McpClient:
        """Return a client for a run, with a sequence."""
        chosen = msgspec.structs.replace(ClientOptions(), **options)
        return McpClient(self.binding(context), DurableRequestSequence(first), options=chosen)
