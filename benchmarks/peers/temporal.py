from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.conversation import question, reply
from benchmarks.payload import PAYLOAD_BYTES
from benchmarks.peers.peer import Peer, Watcher, answer, work

HEARTBEAT_SECONDS = 10
_QUEUE = "benchmarks"
_BRIEFLY = timedelta(seconds=10)
_LONG = timedelta(minutes=10)


class TemporalPeer(Peer):
    """Workflows and activities on a server, with a worker in this process, without its sandbox."""

    def __init__(self, address: str, watcher: Watcher) -> None:
        super().__init__(address, watcher)
        self._open = AsyncExitStack()

    async def open(self) -> None:
        self._client = await Client.connect(self.address)
        activities = _Activities(self.watcher)
        worker = Worker(
            self._client,
            task_queue=_QUEUE,
            workflows=_WORKFLOWS,
            activities=[activities.touch, activities.held, activities.ask],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        await self._open.enter_async_context(worker)

    async def close(self) -> None:
        await self._open.aclose()

    async def settings(self) -> str:
        return (
            "a file with a rollback journal; each commit is fsynced, by the server's own settings"
        )

    async def run(self, run_id: str, operations: int, size: int) -> int:
        handle = await self._start(run_id, "working", run_id, operations, size, False)
        returned = await handle.result()
        self.watcher.done(f"{run_id}.{operations - 1}")
        return returned

    async def go_on(self, run_id: str, operations: int, size: int) -> int:
        return await self.run(run_id, operations, size)

    async def hold(self, run_id: str, operations: int) -> None:
        await self._start(run_id, "working", run_id, operations, PAYLOAD_BYTES, True)

    async def replay(self, run_id: str, operations: int) -> float:
        # A worker that never saw the run has to repeat its code before it can answer.
        began = time.perf_counter()
        await self._client.get_workflow_handle(run_id).query("state")
        return time.perf_counter() - began

    async def converse(self, turns: int) -> None:
        await (await self._start("conversation", "conversation", turns)).result()

    async def converse_by_turns(self, turns: int) -> None:
        messages: list[Any] = []
        for turn in range(turns):
            messages.append(question(turn))
            handle = await self._start(f"turn-{turn}", "one_turn", messages)
            messages.append(await handle.result())

    async def _start(self, run_id: str, name: str, *arguments: Any) -> WorkflowHandle[Any, Any]:
        return await self._client.start_workflow(
            name,
            args=arguments,
            id=run_id,
            task_queue=_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )


class _Activities:
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @activity.defn
    async def touch(self, name: str, payload: str, seed: int) -> str:
        run_id, _, number = name.rpartition(".")
        if number != "0":
            # That the workflow asks for this one tells that it has the one before.
            self._watcher.done(f"{run_id}.{int(number) - 1}")
        self._watcher.called(name)
        return answer(len(payload), seed)

    @activity.defn
    async def held(self, run_id: str) -> None:
        self._watcher.held(run_id)
        while True:
            activity.heartbeat()
            await asyncio.sleep(1)

    @activity.defn
    async def ask(self, turn: int, messages: list[Any]) -> dict[str, Any]:
        return reply(turn)


async def _touch(name: str, payload: str, seed: int) -> str:
    return await workflow.execute_activity(
        "touch", args=[name, payload, seed], start_to_close_timeout=_BRIEFLY
    )


async def _ask(turn: int, messages: list[Any]) -> Any:
    return await workflow.execute_activity(
        "ask", args=[turn, messages], start_to_close_timeout=_BRIEFLY
    )


@workflow.defn(name="working", sandboxed=False)
class _Working:
    @workflow.run
    async def run(self, run_id: str, operations: int, size: int, holds: bool) -> int:
        returned = await work(Watcher(), _touch, run_id, operations, size)
        if holds:
            await workflow.execute_activity(
                "held",
                run_id,
                start_to_close_timeout=_LONG,
                heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
            )
        return returned

    @workflow.query
    def state(self) -> str:
        return "repeated"


@workflow.defn(name="conversation", sandboxed=False)
class _Conversation:
    @workflow.run
    async def run(self, turns: int) -> None:
        messages: list[Any] = []
        for turn in range(turns):
            messages.append(question(turn))
            messages.append(await _ask(turn, messages))


@workflow.defn(name="one_turn", sandboxed=False)
class _OneTurn:
    @workflow.run
    async def run(self, messages: list[Any]) -> Any:
        return await _ask(len(messages) // 2, messages)


_WORKFLOWS = (_Working, _Conversation, _OneTurn)
