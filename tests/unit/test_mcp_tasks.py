from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult

from perdure import Context, OperationFailed
from perdure.adapters.mcp import McpOptions, McpTasks, McpWorker
from perdure.errors import InvalidMcpResponse
from tests.harness import Pause, app_on, finish, interrupt, keys, once, run, sql
from tests.mcp_parcels import Desk, Scripted

MOMENT = "2026-01-01T00:00:00Z"


class TaskServer(Scripted):
    """Speaks the protocol that has tasks; a task is over after as many polls as it is told to."""

    def __init__(self, polls: int) -> None:
        super().__init__(self._tell)
        self.polls = polls

    def _tell(self, method: str, params: dict[str, Any]) -> Any:
        done = self.methods.count("tasks/get") >= self.polls
        task = {
            "taskId": "task-7",
            "status": "completed" if done else "working",
            "createdAt": MOMENT,
            "lastUpdatedAt": MOMENT,
            "ttl": None,
            "pollInterval": 250,
        }
        match method:
            case "initialize":
                return {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tasks": {"requests": {"tools": {"call": {}}}}},
                    "serverInfo": {"name": "tasks", "version": "1"},
                }
            case "tools/call":
                return {"task": {**task, "status": "working"}}
            case "tasks/get":
                return task
            case "tasks/cancel":
                return {**task, "status": "cancelled"}
            case "tasks/result":
                return {"content": [{"type": "text", "text": "it is in Oslo"}]}
            case _:
                return -32601


def words(result: CallToolResult) -> list[Any]:
    return [content.model_dump()["text"] for content in result.content]


def test_a_task_is_started_once_and_asked_for_by_the_id_that_was_recorded(tmp_path: Path) -> None:
    server = TaskServer(polls=2)
    desk = Desk(McpWorker(server.connect, options=McpOptions(legacy=True)))
    app = app_on(tmp_path)
    slept: list[float] = []

    async def main() -> Any:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> Any:
            async def sleep(seconds: float) -> None:
                slept.append(seconds)

            tasks = McpTasks(desk.client(context, capabilities={"tasks": {}}))
            task = await tasks.start("send", {"city": "Oslo"}, keep_ms=60_000)
            await pause()
            return words(await tasks.finish(task, sleep))

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == ["it is in Oslo"]
    start = {"name": "send", "arguments": {"city": "Oslo"}, "task": {"ttl": 60_000}}
    mine = {"taskId": "task-7"}
    asked = [
        (method, {key: value for key, value in params.items() if key != "_meta"})
        for method, params in server.asked
        if method in server.methods
    ]
    assert asked == [
        ("tools/call", start),
        ("tasks/get", mine),
        ("tasks/get", mine),
        ("tasks/result", mine),
    ]
    assert slept == [0.25, 0.25]
    assert run(keys(app)) == [("mcp.request", number) for number in (1, 2, 3, 4)]
    states = sql(tmp_path, "SELECT target, support, state FROM receipts")
    assert states == [("parcels.send", "at_least_once", "completed")]


def test_a_task_can_be_cancelled_and_is_not_polled_for_ever(tmp_path: Path) -> None:
    server = TaskServer(polls=100)
    desk = Desk(McpWorker(server.connect, options=McpOptions(legacy=True)))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> Any:
        async def sleep(seconds: float) -> None: ...

        tasks = McpTasks(desk.client(context, capabilities={"tasks": {}}))
        task = await tasks.start("send", {"city": "Oslo"})
        with pytest.raises(InvalidMcpResponse, match="goes on after 3 polls"):
            await tasks.finish(task, sleep, most_polls=3)
        return (await tasks.cancel(task.task_id)).status

    assert run(once(app, work)) == "cancelled"
    states = sql(tmp_path, "SELECT target, support, state FROM receipts ORDER BY target")
    assert states == [
        ("parcels.send", "at_least_once", "completed"),
        ("parcels.tasks/cancel", "idempotent", "completed"),
    ]


def test_what_the_server_of_tasks_does_not_know_is_refused(tmp_path: Path) -> None:
    desk = Desk(McpWorker(TaskServer(polls=1).connect))  # finds out which protocol it is
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> Any:
        with pytest.raises(OperationFailed) as failed:
            await desk.client(context).request("parcels/burn")
        return failed.value.code

    assert run(once(app, work)) == "EffectRejected"
