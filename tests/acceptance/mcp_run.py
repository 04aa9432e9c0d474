"""A run that asks an MCP server, in a process that may be killed at a point of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from mcp.client.stdio import StdioServerParameters

from perdure import App, Context, RetryPolicy, RunFailed, RunNeedsAttention
from perdure.adapters.mcp import DurableRequestSequence, McpClient, McpOptions, McpWorker
from perdure.journal import Binding, Handlers, OperationKind
from perdure.runtimes.embedded import EmbeddedRuntime
from perdure.testing.crash import CrashAt

RUN_ID = "run-1"
_KEY = (OperationKind.MCP_REQUEST, "depot")
_ROOT = Path(__file__).parents[2]


def ask(folder: Path, tool: str, killed_at: str | None) -> None:
    """List the tools, call one, and note how the run ended."""
    url = folder / "url"
    reached: Any = (
        url.read_text()
        if url.exists()
        else StdioServerParameters(
            command=sys.executable,
            args=["-m", "tests.acceptance.mcp_depot", str(folder)],
            env={**os.environ},
            cwd=_ROOT,
        )
    )
    patient = RetryPolicy(attempts=500, initial_seconds=0.05, maximum_seconds=0.1)
    worker = McpWorker(reached, trusted=True, options=McpOptions(retry=patient))
    handlers = Handlers()
    handlers.register(*_KEY, worker)
    app = App(f"sqlite:///{folder}/runs.db", **({"probe": CrashAt(killed_at)} if killed_at else {}))

    @app.run(version=1)
    async def work(context: Context) -> Any:
        async with worker:
            runtime = EmbeddedRuntime(context, handlers, effects={_KEY: worker.terms})
            ids = {OperationKind.MCP_REQUEST: "depot"}
            binding = Binding(run_id=context.run_id, runtime=runtime, handler_ids=ids)
            client = McpClient(binding, DurableRequestSequence())
            tools = [each.name for each in await client.list_tools()]
            result = await client.call_tool(tool, {"city": "Oslo"})
            return [tools, [content.model_dump()["text"] for content in result.content]]

    try:
        ended = {"returned": app.run_sync(work, run_id=RUN_ID)}
    except (RunFailed, RunNeedsAttention) as problem:
        ended = {"ended": problem.code}
    (folder / "ended.json").write_text(json.dumps(ended))
