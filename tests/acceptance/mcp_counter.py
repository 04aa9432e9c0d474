"""An MCP server over streamable HTTP that counts its calls, for any number of clients."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from tests.acceptance.children import note

SCENARIO = "x-scenario"
"""The header that names the folder in which a call is counted."""


def serve(announced: Path) -> None:
    """Serve for ever; `announced` gets the URL."""
    server = MCPServer("parcels")

    @server.tool()
    def quote(city: str, ctx: Context) -> str:
        """Return what a parcel to a city costs."""
        headers = ctx.request_context.request.headers
        note(Path(headers[SCENARIO]) / "effects.log", effect="quote", about=city)
        return f"{city}: {4 + len(city)} EUR"

    listening = socket.create_server(("127.0.0.1", 0))
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    partial = announced.with_suffix(".partial")
    partial.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
    partial.rename(announced)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])
