from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context as ToolContext

from perdure import Context, EffectRejected, OperationFailed
from perdure.adapters.mcp import DurableRequest, McpClient, McpOptions, McpWorker, Notifications
from perdure.journal.payloads import McpMetadata, ProgressToken
from perdure.testing.manual_clock import ManualClock
from tests.harness import Pause, app_on, finish, in_time, interrupt, keys, once, run
from tests.mcp_parcels import Desk, Parcels, Scripted

PROGRESS = McpMetadata(progress_token=ProgressToken(string="op-1"))


def heard(desk: Desk) -> list[Any]:
    return [json.loads(event)["params"].get("message") for event in desk.events]


@pytest.mark.parametrize("legacy", [False, True], ids=["modern", "legacy"])
def test_what_a_server_notifies_of_during_a_request_is_delivered_with_it(
    tmp_path: Path, legacy: bool
) -> None:
    worker = McpWorker(Parcels().connect, options=McpOptions(legacy=legacy))
    desk = Desk(worker)
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        client = desk.client(context, metadata=PROGRESS)
        await client.call_tool("send", {"city": "Oslo"}, deliver_events=True)
        await client.call_tool("send", {"city": "Rome"})

    run(once(app, work))
    assert heard(desk) == ["packed", "gone"]
    first = json.loads(desk.events[0])
    assert first == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "op-1", "progress": 1, "total": 2, "message": "packed"},
    }
    assert run(keys(app)) == [
        ("mcp.request", 1),
        ("mcp.event.1.0", 0),
        ("mcp.event.1.1", 0),
        ("mcp.request", 2),
    ]


def test_an_event_that_was_delivered_is_not_delivered_again_after_one_that_was_not(
    tmp_path: Path,
) -> None:
    parcels = Parcels()
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        async def deliver(event: str) -> None:
            if json.loads(event)["params"]["message"] == "gone":
                await pause()

        desk = Desk(McpWorker(parcels.connect), deliver=deliver)

        @app.run(version=1)
        async def work(context: Context) -> None:
            client = desk.client(context, metadata=PROGRESS)
            await client.call_tool("send", {"city": "Oslo"}, deliver_events=True)

        await interrupt(app, pause, work)
        assert heard(desk) == ["packed"]
        await finish(app)
        assert heard(desk) == ["packed", "gone"]

    run(main())
    assert parcels.calls == [("send", "Oslo")]


def test_a_delivery_that_fails_ends_the_request_and_those_after_it(tmp_path: Path) -> None:
    async def deliver(event: str) -> None:
        if json.loads(event)["params"]["message"] == "packed":
            raise EffectRejected("no room")

    desk = Desk(McpWorker(Parcels().connect), deliver=deliver)
    app = app_on(tmp_path, clock=(clock := ManualClock()))

    @app.run(version=1)
    async def work(context: Context) -> str:
        client = desk.client(context, metadata=PROGRESS)
        with pytest.raises(OperationFailed) as failed:
            await client.call_tool("send", {"city": "Oslo"}, deliver_events=True)
        return failed.value.code

    assert run(in_time(clock, once(app, work))) == "EffectRejected"
    assert heard(desk) == []


def test_listening_ends_when_enough_was_heard_and_delivers_each_event(tmp_path: Path) -> None:
    parcels = Parcels()

    @parcels.server.tool()
    async def change(ctx: ToolContext) -> str:
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("depot://oslo")
        return "changed"

    options = McpOptions(listen_events=2, listen_seconds=30)
    desk = Desk(McpWorker(parcels.connect, options=options))
    app = app_on(tmp_path)

    async def main() -> None:
        @app.run(version=1)
        async def work(context: Context) -> None:
            wanted = Notifications(tools_list_changed=True, resources=("depot://oslo",))
            await desk.client(context, first=3).listen_durable(wanted)

        async with app:
            handle = await app.start(work, None, run_id="run-1")
            direct = McpClient(direct=McpWorker(parcels.connect))
            while not desk.events:
                # Nothing tells when the server has begun to listen.
                await direct.call_tool("change")
                await asyncio.sleep(0)
            await handle.result()

    run(main())
    methods = [json.loads(event)["method"] for event in desk.events]
    assert sorted(methods) == [
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    assert run(keys(app)) == [("mcp.request", 3), ("mcp.event.3.0", 0), ("mcp.event.3.1", 0)]


def test_listening_ends_when_its_time_is_over(tmp_path: Path) -> None:
    desk = Desk(McpWorker(Parcels().connect, options=McpOptions(listen_seconds=0)))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        wanted = Notifications(tools_list_changed=True)
        at = DurableRequest(sequence=1, step_id="listen")
        await desk.client(context).listen_durable(wanted, at=at)

    run(once(app, work))
    assert run(keys(app)) == [("listen", 1)]


def test_an_older_server_cannot_be_listened_to(tmp_path: Path) -> None:
    options = McpOptions(legacy=True)
    desk = Desk(McpWorker(Parcels().connect, options=options))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        with pytest.raises(OperationFailed) as failed:
            await desk.client(context).listen_durable(Notifications(tools_list_changed=True))
        return failed.value.code

    assert run(once(app, work)) == "McpError"


def test_what_was_heard_before_a_stream_broke_was_heard(tmp_path: Path) -> None:
    def answer(method: str, params: Any) -> Any:
        return Scripted.HANG_UP if method == "subscriptions/listen" else None

    server = Scripted(answer, "notifications/tools/list_changed")
    desk = Desk(McpWorker(server.connect))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await desk.client(context).listen_durable(Notifications(tools_list_changed=True))

    run(once(app, work))
    assert [json.loads(event)["method"] for event in desk.events] == [
        "notifications/tools/list_changed"
    ]
