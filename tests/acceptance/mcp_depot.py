"""An MCP server that counts its calls in a folder, over stdio or streamable HTTP.

Files in the folder say what it does: it holds a call while there is `hold`, kills itself in the
middle of one when there is `die`, and has one tool less where there is `closed`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

from tests.acceptance.children import note


def server_in(folder: Path) -> MCPServer:
    """Return the server of a folder."""
    server = MCPServer("depot")

    async def counted(effect: str, city: str, ctx: Context) -> str:
        key = (ctx.request_context.meta or {}).get("perdure/operation_key")
        note(folder / "effects.log", effect=effect, about=city, key=key)
        if (folder / "die").exists():
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        while (folder / "hold").exists():
            await asyncio.sleep(0.01)
        return f"{city}: {4 + len(city)} EUR"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def quote(city: str, ctx: Context) -> str:
        return await counted("quote", city, ctx)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def track(city: str, ctx: Context) -> str:
        return await counted("track", city, ctx)

    @server.tool()
    async def send(city: str, ctx: Context) -> str:
        return await counted("send", city, ctx)

    if not (folder / "closed").exists():

        @server.tool()
        async def fetch(city: str, ctx: Context) -> str:
            return await counted("fetch", city, ctx)

    return server


def serve(folder: Path, port: int = 0) -> None:
    """Serve over HTTP for ever; the folder gets the URL."""
    listening = socket.create_server(("127.0.0.1", port))
    app = server_in(folder).streamable_http_app()
    partial = folder / "url.partial"
    partial.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
    partial.rename(folder / "url")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    note(folder / "servers.log", server="stdio")
    server_in(folder).run("stdio")
