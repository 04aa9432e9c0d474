"""An MCP server over streamable HTTP that counts its calls, for any number of clients."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

from tests.acceptance.children import note

SCENARIO = "x-scenario"
"""The header that names the folder in which a call is counted."""


def serve(announced: Path) -> None:
    """Serve for ever; `announced` gets the URL."""
    server = MCPServer("parcels")

    def counted(effect: str, city: str, ctx: Context) -> str:
        headers = ctx.request_context.request.headers
        key = (ctx.request_context.meta or {}).get("perdure/operation_key")
        note(Path(headers[SCENARIO]) / "effects.log", effect=effect, about=city, key=key)
        return f"{city}: {4 + len(city)} EUR"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def quote(city: str, ctx: Context) -> str:
        """Return what a parcel to a city costs."""
        return counted("quote", city, ctx)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def track(city: str, ctx: Context) -> str:
        """Return where the parcel to a city is."""
        return counted("track", city, ctx)

    @server.tool()
    def send(city: str, ctx: Context) -> str:
        """Send a parcel to a city."""
        return counted("send", city, ctx)

    listening = socket.create_server(("127.0.0.1", 0))
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    partial = announced.with_suffix(".partial")
    partial.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
    partial.rename(announced)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])
