from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset

from perdure.adapters.pydantic_ai.mcp_call import McpCall, call_under_way, says_closed
from perdure.effect_function import identity_here

if TYPE_CHECKING:
    from pydantic_ai.mcp import CallToolFunc, ProcessToolCallback, ToolResult

OPERATION_KEY: Final = "perdure/operation_key"
"""Where a server finds the operation key, in the `_meta` of a call."""


class Watcher:
    """Stands before the `process_tool_call` hook of a toolset, and calls it as before.

    Within an operation it offers the operation key to the server, notes what becomes of each call,
    and makes a connection anew that was lost.
    """

    def __init__(self, hook: ProcessToolCallback | None) -> None:
        self._hook = hook
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def __call__(
        self, ctx: RunContext[Any], call: CallToolFunc, name: str, args: dict[str, Any]
    ) -> ToolResult:
        """Call a tool as the hook wants it."""
        attempt = call_under_way()
        if attempt is not None:
            attempt.come_to()
            call = self._noting(attempt, call)
        if self._hook is None:
            return await call(name, args)
        return await self._hook(ctx, call, name, args)

    def _noting(self, attempt: McpCall, call: CallToolFunc) -> CallToolFunc:
        client = _client_of(call)

        async def noted(
            name: str, args: dict[str, Any], *, metadata: dict[str, Any] | None = None
        ) -> ToolResult:
            send = partial(call, name, args, metadata={**_key(), **(metadata or {})})
            try:
                return await self._send(attempt, client, send)
            except Exception:
                if not (attempt.harmless and attempt.lost):
                    raise
            return await self._send(attempt, client, send)

        return noted

    async def _send(
        self, attempt: McpCall, client: Any, send: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        async with self._connected(client) as session:
            attempt.send()
            try:
                result = await send()
            except Exception as error:
                attempt.end(error, lost=await self._bury(client, session, error))
                raise
            attempt.end(None)
            return result

    @asynccontextmanager
    async def _connected(self, client: Any) -> AsyncGenerator[Any]:
        """Hold the connection for the time of a call, or make one for it."""
        if client is None:
            yield None
            return
        async with self._lock():
            if not client.is_connected():
                with suppress(Exception):
                    await client.close()
            await client.__aenter__()
        try:
            yield client.session
        finally:
            with suppress(Exception):  # the end of a lost one says once more how it was lost
                await client.__aexit__(None, None, None)

    async def _bury(self, client: Any, session: Any, error: Exception) -> bool:
        """Close a connection that was lost, and return whether it was.

        Left alone, it would fail whoever leaves the toolset in the end, having done well.
        """
        if client is None:
            return False
        async with self._lock():
            lost = says_closed(error) or not client.is_connected()
            if lost and (not client.is_connected() or client.session is session):
                with suppress(Exception):
                    await client.close()
            return lost

    def _lock(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def watch(toolset: AbstractToolset[Any]) -> None:
    """Watch the calls that a toolset sends to its server."""
    server: Any = toolset
    hook = getattr(server, "process_tool_call", None)
    if not isinstance(hook, Watcher):
        server.process_tool_call = Watcher(hook)


@asynccontextmanager
async def connected(
    toolset: AbstractToolset[Any], failed: Callable[[Exception], Exception]
) -> AsyncGenerator[None]:
    """Start a server, or connect to it, and hold that until the end of a call.

    What goes wrong then is raised as `failed` makes it.
    """
    try:
        await toolset.__aenter__()
    except Exception as error:
        raise failed(error) from error
    try:
        yield
    finally:
        with suppress(Exception):  # the call is over and recorded, whatever it says
            await toolset.__aexit__(None, None, None)


def is_watched(toolset: AbstractToolset[Any]) -> bool:
    """Return whether no call of a toolset gets past its watcher."""
    from pydantic_ai.mcp import MCPToolset  # it takes a second, and who has a server has it

    hook = getattr(toolset, "process_tool_call", None)
    return isinstance(hook, Watcher) and calls_as(toolset, MCPToolset)


def calls_as(toolset: object, kind: type[Any]) -> bool:
    """Return whether a toolset calls its tools as all of a kind do."""
    return getattr(type(toolset), "call_tool", None) is getattr(kind, "call_tool", None)


def _key() -> dict[str, Any]:
    identity = identity_here()
    return {} if identity is None else {OPERATION_KEY: identity.operation_key}


def _client_of(call: CallToolFunc) -> Any:
    """Return the client that a call goes through, or None where that cannot be told."""
    toolset = getattr(getattr(call, "func", None), "__self__", None)
    return getattr(toolset, "client", None)
