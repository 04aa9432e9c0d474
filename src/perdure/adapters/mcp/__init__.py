from __future__ import annotations

from perdure.errors import MissingExtra

try:
    from perdure.adapters.mcp.answers import Answers
    from perdure.adapters.mcp.client import McpClient
    from perdure.adapters.mcp.http_server import HttpServer
    from perdure.adapters.mcp.identity import DurableRequest, DurableRequestSequence
    from perdure.adapters.mcp.notifications import Notifications
    from perdure.adapters.mcp.routing import ClientOptions
    from perdure.adapters.mcp.tasks import McpTasks
    from perdure.adapters.mcp.worker import McpOptions, McpWorker
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types", "httpx2", "anyio"}:
        raise
    raise MissingExtra(
        f"durable MCP requests need the mcp client, and there is no {error.name}: pip install"
        " 'perdure[mcp]'"
    ) from error

__all__ = [
    "Answers",
    "ClientOptions",
    "DurableRequest",
    "DurableRequestSequence",
    "HttpServer",
    "McpClient",
    "McpOptions",
    "McpTasks",
    "McpWorker",
    "Notifications",
]
