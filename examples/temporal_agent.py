"""A Pydantic AI agent inside a workflow on Temporal, which waits for a person's approval.

Run it with `uv run python examples/temporal_agent.py`, which starts a development server of its own
and gets its program first if need be; the model is a scripted one, and needs no key.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio import workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.adapters.pydantic_ai import Durable, agent_handlers, durable_on
from perdure.journal import Handlers
from perdure.runtimes.temporal import operation_worker, workflow_runtime
from perdure.testing.scripted import Call, Reply, ScriptedModel

script = ScriptedModel([Reply(calls=[Call("refund", {"order": 42})]), "Order 42 is refunded."])
agent = Agent(
    script,
    name="support",
    output_type=[str, DeferredToolRequests],
    capabilities=[Durable()],
)


@agent.tool_plain(requires_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    print(f"(refunding {order})")
    return f"refunded {order}"


@workflow.defn
class Support:
    """One question, and whatever the agent does about it."""

    def __init__(self) -> None:
        self._said: str | None = None

    @workflow.signal
    def answer(self, said: str) -> None:
        """Say whether the calls that wait may be made: yes, or anything else."""
        self._said = said

    @workflow.run
    async def run(self, question: str) -> str:
        """Return what the agent answers."""
        run_id = workflow.info().workflow_id
        with durable_on(workflow_runtime(), run_id=run_id, now=workflow.time):
            result = await agent.run(question)
            while isinstance(result.output, DeferredToolRequests):
                await workflow.wait_condition(lambda: self._said is not None)
                answers = DeferredToolResults()
                for call in result.output.approvals:
                    answers.approvals[call.tool_call_id] = self._said == "yes"
                result = await agent.run(
                    message_history=result.all_messages(), deferred_tool_results=answers
                )
        return result.output


async def ask(client: Client, run_id: str) -> str:
    """Have the agent answer, and approve what it wants to do."""
    handlers = Handlers()
    agent_handlers(agent, handlers)
    async with operation_worker(
        client, run_id, handlers, workflows=[Support], plugins=[PydanticAIPlugin()]
    ):
        question = "Order 42 arrived broken."
        handle = await client.start_workflow(Support.run, question, id=run_id, task_queue=run_id)
        await handle.signal(Support.answer, "yes")
        return await handle.result()


async def main() -> None:
    async with await WorkflowEnvironment.start_local() as server:
        print(await ask(server.client, "ticket-1"))


if __name__ == "__main__":
    asyncio.run(main())
