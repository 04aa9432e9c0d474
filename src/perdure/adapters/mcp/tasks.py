from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp_types import (
    CallToolResult,
    CancelTaskResult,
    CreateTaskResult,
    GetTaskResult,
    Task,
)

from perdure.adapters.mcp.client import McpClient
from perdure.adapters.mcp.identity import DurableRequest
from perdure.errors import InvalidMcpResponse

_GOING_ON: Final = {"working", "input_required"}
_POLL_SECONDS: Final = 1.0


class McpTasks:
    """Calls tools as tasks of a server, which go on while nobody is connected.

    The id of a task is recorded by the request that starts it. From then on a crash costs nothing:
    what asks for its state or its result only reads. The client's options need "tasks" among the
    capabilities, and the server's protocol one that has them (2025-11-25).
    """

    def __init__(self, client: McpClient) -> None:
        self._client = client

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        keep_ms: int | None = None,
        at: DurableRequest | None = None,
    ) -> Task:
        """Start a tool as a task; `keep_ms` is for how long the server is to keep it.

        Durable when it returns: the id of the task, and with it the receipt of an effect.
        If it raises: as `McpClient.call_tool`.
        """
        task = {} if keep_ms is None else {"ttl": keep_ms}
        params = {"name": name, "arguments": dict(arguments or {}), "task": task}
        return (await self._client.ask(CreateTaskResult, "tools/call", params, at=at)).task

    async def get(self, task_id: str, *, at: DurableRequest | None = None) -> Task:
        """Return how a task is doing."""
        return await self._client.ask(GetTaskResult, "tasks/get", {"taskId": task_id}, at=at)

    async def result(self, task_id: str, *, at: DurableRequest | None = None) -> CallToolResult:
        """Return the result of a task; the server answers when the task is over."""
        return await self._client.ask(CallToolResult, "tasks/result", {"taskId": task_id}, at=at)

    async def cancel(self, task_id: str, *, at: DurableRequest | None = None) -> Task:
        """Cancel a task."""
        return await self._client.ask(CancelTaskResult, "tasks/cancel", {"taskId": task_id}, at=at)

    async def finish(
        self, task: Task, sleep: Callable[[float], Awaitable[None]], *, most_polls: int = 1000
    ) -> CallToolResult:
        """Ask for the state of a task until it is over, and return its result.

        `sleep` waits between two polls, for the seconds that the server asks for: `context.sleep`
        in a run. Each poll is a request of its own, so the client needs a sequence.

        Raises `InvalidMcpResponse` where the task goes on after so many polls, or as every request.
        """
        polls = 0
        while task.status in _GOING_ON:
            if polls == most_polls:
                raise InvalidMcpResponse(f"the task {task.task_id} goes on after {polls} polls")
            wanted = task.poll_interval
            await sleep(_POLL_SECONDS if wanted is None else wanted / 1000)
            task = await self.get(task.task_id)
            polls += 1
        return await self.result(task.task_id)
