"""An MCP server over stdio that knows bank days: `python -m perdure.demo.clock_server SHOP`."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from perdure.demo.shop import Shop

_SATURDAY = 5


def main(path: Path) -> None:
    """Answer on stdin and stdout until stdin is closed; calls are counted in the shop."""
    shop = Shop(path)
    worker = os.getppid()
    server = MCPServer("clock", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def bank_day(days: int) -> str:  # pyright: ignore[reportUnusedFunction] - the server calls it
        """Return the date that is so many bank days away."""
        shop.visit("mcp", "bank_day", worker)
        day = datetime.now(UTC).date()
        while days > 0:
            day += timedelta(days=1)
            days -= day.weekday() < _SATURDAY
        return day.isoformat()

    server.run("stdio")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
