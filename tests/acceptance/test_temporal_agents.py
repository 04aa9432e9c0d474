"""Agents of Pydantic AI inside a user's own workflow, on a real server and in the SDK's sandbox."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import DeferredToolRequests
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Replayer

from perdure.adapters.pydantic_ai import agent_handlers, durable_on
from perdure.journal import Handlers
from perdure.runtimes.temporal import TemporalRuntime, operation_worker, workflow_runner
from tests.acceptance.operating import Place
from tests.acceptance.samples import LONG
from tests.acceptance.temporal_agent import Support, Unlucky, support
from tests.harness import run
from tests.services import connected

pytestmark = LONG

ROOT = Path(__file__).parents[2]
STEPS = [
    "model.request/1",
    "model.request.retry.1/1",
    "tool.call/1",
    "tool.call/2",
    "agent.2.tool.call/3",
    "agent.2.model.request/1",
]
CALLS = ["look_up 7", "look_up 8", "refund"]


class Calls:
    """What tools were called here."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def __call__(self, called: str) -> None:
        self.made.append(called)


def test_an_agent_runs_in_a_workflow_waits_for_an_approval_and_replays() -> None:
    async def main() -> None:
        calls = Calls()
        async with connected() as client:
            place = Place(client)
            # Nothing is cached, so each task replays the workflow from its start.
            async with _worker(place, calls, max_cached_workflows=0):
                handle = await _started(place)
                await _answered(handle)
                assert await handle.result() == "Refunded."
            assert await _scheduled(handle) == [f"{place.run_id}/{step}" for step in STEPS]
            assert sorted(calls.made) == CALLS
            replayer = Replayer(
                workflows=[Support],
                workflow_runner=workflow_runner(),
                plugins=[PydanticAIPlugin()],
            )
            await replayer.replay_workflow(await handle.fetch_history())
            assert len(calls.made) == len(CALLS)

    run(main())


@pytest.mark.parametrize("dies_at", ["look_up 7", "refund"])
def test_what_a_worker_had_finished_is_not_called_again_once_it_is_killed(dies_at: str) -> None:
    async def main() -> None:
        calls = Calls()
        async with connected() as client:
            place = Place(client)
            address = client.service_client.config.target_host
            command = [sys.executable, "-m", "tests.acceptance.temporal_agent"]
            with subprocess.Popen(
                [*command, address, place.queue, dies_at], cwd=ROOT, stdout=subprocess.PIPE
            ) as doomed:
                assert doomed.stdout is not None
                handle = await _started(place)
                before: list[str] = []
                try:
                    if dies_at == "refund":
                        await _answered(handle)
                    while dies_at not in before:
                        line = await asyncio.to_thread(doomed.stdout.readline)
                        before.append(line.decode().strip())
                        assert line, "the worker has ended"
                    done = await _completed(handle, 2 if dies_at == "refund" else 0)
                finally:
                    doomed.kill()
                    # It may have said more than was read of it before it died.
                    rest, _ = await asyncio.to_thread(doomed.communicate)
                before += rest.decode().splitlines()
            async with _worker(place, calls):
                if dies_at != "refund":
                    await _answered(handle)
                assert await handle.result() == "Refunded."
            # The call that nobody knows of, and what was at work beside it.
            assert dies_at in calls.made
            assert not set(done) & set(calls.made)
            assert {*before, *calls.made} == set(CALLS)

    run(main())


def test_code_that_needs_a_thread_fails_the_workflow_and_says_so() -> None:
    async def main() -> None:
        async with connected() as client, _worker(place := Place(client), Calls()):
            with pytest.raises(WorkflowFailureError) as raised:
                await client.execute_workflow(Unlucky.run, id=place.run_id, task_queue=place.queue)
            assert "is not async" in str(raised.value.cause)

    run(main())


def test_a_program_that_is_started_again_gets_what_its_agent_did() -> None:
    async def main() -> None:
        calls = Calls()
        handlers = Handlers()
        agent = support(calls)
        known = agent_handlers(agent, handlers)
        async with connected() as client:
            place = Place(client)
            runtime = TemporalRuntime(client, task_queue=place.queue, registrations=known)
            async with operation_worker(client, place.queue, handlers):
                for _ in range(2):
                    with durable_on(runtime, run_id=place.run_id):
                        asked = (await agent.run("Where are my orders?")).output
                    assert isinstance(asked, DeferredToolRequests)
                    assert [call.tool_name for call in asked.approvals] == ["refund"]
            assert sorted(calls.made) == CALLS[:2]

    run(main())


def test_the_example_does_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module("temporal_agent")

    async def main() -> str:
        async with connected() as client:
            return await example.ask(client, f"ticket-{uuid4().hex}")

    try:
        assert run(main()) == "Order 42 is refunded."
    finally:
        del sys.modules["temporal_agent"]
    assert capfd.readouterr().out.count("(refunding 42)") == 1


def _worker(place: Place, call: Callable[[str], Awaitable[None]], **settings: Any) -> Any:
    handlers = Handlers()
    agent_handlers(support(call), handlers)
    return operation_worker(
        place.client,
        place.queue,
        handlers,
        workflows=[Support, Unlucky],
        plugins=[PydanticAIPlugin()],
        **settings,
    )


async def _started(place: Place) -> WorkflowHandle[Any, str]:
    client: Client = place.client
    return await client.start_workflow(
        Support.run, "Where are my orders?", id=place.run_id, task_queue=place.queue
    )


async def _answered(handle: WorkflowHandle[Any, str]) -> None:
    """Approve once the workflow waits for that."""
    while await handle.query(Support.asked) != ["refund"]:
        await asyncio.sleep(0.05)
    await handle.signal(Support.approve, True)


async def _scheduled(handle: WorkflowHandle[Any, str]) -> list[str]:
    return [
        event.activity_task_scheduled_event_attributes.activity_id
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def _completed(handle: WorkflowHandle[Any, str], tools: int) -> list[str]:
    """Return the tools that are done and recorded, of which there are to be so many."""
    names = {"tool.call/1": "look_up 7", "tool.call/2": "look_up 8"}
    while True:
        events = (await handle.fetch_history()).events
        ids = {
            event.event_id: event.activity_task_scheduled_event_attributes.activity_id
            for event in events
            if event.HasField("activity_task_scheduled_event_attributes")
        }
        done = [
            ids[event.activity_task_completed_event_attributes.scheduled_event_id]
            for event in events
            if event.HasField("activity_task_completed_event_attributes")
        ]
        found = [name for end, name in names.items() if any(key.endswith(end) for key in done)]
        if len(found) >= tools:
            return found
        await asyncio.sleep(0.05)
