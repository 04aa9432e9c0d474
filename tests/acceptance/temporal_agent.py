"""An agent in a workflow as users write it, and a worker with its handlers that gets killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError, ModelServerError
from temporalio import workflow
from temporalio.client import Client

from perdure import RetryPolicy
from perdure.adapters.pydantic_ai import Durable, agent_handlers, durable_on
from perdure.journal import Handlers
from perdure.runtimes.temporal import OperationOptions, operation_worker, workflow_runtime
from perdure.testing.scripted import Call, Reply, ScriptedModel, Trouble

SCRIPT = [
    Reply(
        calls=[Call("look_up", {"order": 7}), Call("look_up", {"order": 8}), Call("refund")],
        troubles=[
            Trouble(ModelHTTPError.for_category(ModelServerError, status_code=503, model_name="m"))
        ],
    ),
    "Refunded.",
]
OPTIONS = OperationOptions(
    start_to_close_seconds=10,
    schedule_to_close_seconds=20,
    heartbeat_seconds=0.6,
    initial_interval_seconds=0.05,
    maximum_interval_seconds=0.05,
)


def support(call: Callable[[str], Any]) -> Agent[None, str | DeferredToolRequests]:
    """Return an agent that tells what it calls."""
    durable = Durable[None](retry=RetryPolicy(initial_seconds=0.01, maximum_seconds=0.01))
    agent = Agent(
        ScriptedModel(SCRIPT),
        name="support",
        output_type=[str, DeferredToolRequests],
        capabilities=[durable],
    )

    @agent.instructions
    async def instructions() -> str:
        return "Be kind."

    @agent.tool_plain
    async def look_up(order: int) -> str:
        await call(f"look_up {order}")
        if order == 8:
            raise ModelRetry("there is no such order")
        return f"order {order}"

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        await call("refund")
        return "refunded"

    return agent


async def _nowhere(called: str) -> None:
    raise AssertionError(f"{called} in a workflow")


AGENT = support(_nowhere)


@workflow.defn
class Support:
    """Have the agent answer, and wait for a person where it may not go on alone."""

    def __init__(self) -> None:
        self._asked: list[str] = []
        self._approved: bool | None = None

    @workflow.query
    def asked(self) -> list[str]:
        """Return the calls that wait for an answer."""
        return self._asked

    @workflow.signal
    def approve(self, approved: bool) -> None:
        """Say whether they may be made."""
        self._approved = approved

    @workflow.run
    async def run(self, question: str) -> str:
        """Return what the agent answers."""
        run_id = workflow.info().workflow_id
        with durable_on(workflow_runtime(OPTIONS), run_id=run_id, now=workflow.time):
            result = await AGENT.run(question)
            while isinstance(result.output, DeferredToolRequests):
                calls = result.output.approvals
                self._asked = [call.tool_name for call in calls]
                await workflow.wait_condition(lambda: self._approved is not None)
                answers = {call.tool_call_id: bool(self._approved) for call in calls}
                result = await AGENT.run(
                    message_history=result.all_messages(),
                    deferred_tool_results=DeferredToolResults(approvals=answers),
                )
        return result.output


@workflow.defn
class Unlucky:
    """Have an agent run whose code is not for workflows."""

    @workflow.run
    async def run(self) -> None:
        """Fail."""
        agent = Agent(ScriptedModel(["Never."]), name="unlucky", capabilities=[Durable[None]()])

        @agent.instructions
        def instructions() -> str:
            return "Be quick."

        with durable_on(workflow_runtime(OPTIONS), run_id=workflow.info().workflow_id):
            await agent.run("Well?")


async def work_until_killed(address: str, queue: str, dies_at: str) -> None:
    """Serve a queue, tell of each call, and hold the one at which this process is to be killed."""
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin

    async def call(called: str) -> None:
        print(called, flush=True)
        if called == dies_at:
            await asyncio.Event().wait()

    handlers = Handlers()
    agent_handlers(support(call), handlers)
    async with operation_worker(
        await Client.connect(address),
        queue,
        handlers,
        workflows=[Support],
        plugins=[PydanticAIPlugin()],
        # What it has cached is asked of it for so long after its death.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=0.5),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work_until_killed(*sys.argv[1:]))
