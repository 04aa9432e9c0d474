"""What the traces have that no agent asks for: events, and requests to MCP servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunNeedsAttention
from perdure.adapters.mcp import (
    DurableRequest,
    DurableRequestSequence,
    McpClient,
    McpWorker,
)
from tests.conformance.pydantic_ai.test_traces import identities
from tests.harness import RUN, Pause, app_on, run
from tests.mcp_parcels import Desk, Parcels


def test_an_event_is_delivered_at_its_place_and_not_again(tmp_path: Path) -> None:
    got: list[Any] = []
    pause = Pause()
    total = 5

    def publish(event: dict[str, Any]) -> None:
        got.append(event)

    async def order(context: Context) -> None:
        await context.deliver("order.created", 3, {"total": total}, to=publish)
        await pause()

    async def main() -> list[Any]:
        nonlocal total
        for turn in range(3):
            app = app_on(tmp_path)
            app.run(version=1)(order)
            pause.reached = asyncio.Event()
            total, pause.open = (9, True) if turn == 2 else (5, False)
            async with app:
                handle = await app.start("order", run_id=RUN)
                if turn < 2:
                    await pause.reached.wait()
                    continue
                with pytest.raises(RunNeedsAttention, match="total"):
                    await handle.result()
                rows = await app.store.list_operations(RUN)
                return [(row.kind, row.step_id, row.sequence) for row in rows]
        raise AssertionError

    assert run(main()) == identities("event/application", "executed")
    assert got == [{"total": 5}]


def test_requests_without_an_agent_have_the_numbers_of_the_trace(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def ask(context: Context) -> None:
        async with McpWorker(Parcels().connect) as worker:
            binding = Desk(worker).binding(context).with_namespace("ns")
            client = McpClient(binding, DurableRequestSequence(100))
            await client.request("tools/list")
            discovery = DurableRequest(step_id="mcp.discovery", sequence=7)
            await client.request("tools/list", at=discovery)
            await client.request("tools/list")

    async def main() -> list[Any]:
        async with app:
            await (await app.start(ask, run_id=RUN)).result()
            rows = await app.store.list_operations(RUN)
            return [(row.kind, row.step_id, row.sequence) for row in rows]

    assert run(main()) == identities("mcp/identities-and-errors", "executed")
