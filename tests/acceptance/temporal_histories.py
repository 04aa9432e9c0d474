"""Write the histories that later releases replay: `python -m tests.acceptance.temporal_histories`.

A history that is there is kept, since it is what a server holds of workflows under way; give one
that a new release writes otherwise a name of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from perdure.adapters.pydantic_ai import agent_handlers
from perdure.journal import Invocation
from perdure.runtimes.temporal import TemporalRuntime, operation_worker
from perdure.runtimes.temporal.names import ZIGAI
from perdure.runtimes.temporal.payload import document_value
from perdure.runtimes.temporal.request import OperationRequest
from tests.acceptance.operating import BRISK, REGISTERED, TOOL, Tools
from tests.acceptance.temporal_agent import Support, support
from tests.acceptance.temporal_turn import Held, Turn
from tests.services import connected

HISTORIES = Path(__file__).parents[1] / "vectors" / "temporal"
QUEUE = "agents"


async def record() -> None:
    """Run one workflow of each kind, and write what the server has of it."""
    tools = Tools()
    async with connected() as server:
        address = server.service_client.config.target_host
        client = await Client.connect(address, identity="client")
        agent_handlers(support(_called), tools.handlers)
        async with operation_worker(
            client,
            QUEUE,
            tools.handlers,
            workflows=[Turn, Held, Support],
            plugins=[PydanticAIPlugin()],
            identity="worker",
        ):
            runtime = TemporalRuntime(
                client, task_queue=QUEUE, registrations=REGISTERED, options=BRISK
            )
            ours = Invocation.of("run-1", "tool", 1, TOOL, "tools", "plain")
            await runtime.execute(ours)
            await _write("operation", client.get_workflow_handle(ours.stable_key))
            await _write("foreign_operation", await _foreign(client))
            turn = await client.start_workflow(Turn.run, id="turn", task_queue=QUEUE)
            await turn.result()
            await _write("turn", turn)
            tools.begun.clear()
            held = await client.start_workflow(Held.run, "hold", id="held", task_queue=QUEUE)
            await tools.begun.wait()
            await held.cancel()
            await tools.cancelled.wait()
            with suppress(WorkflowFailureError):
                await held.result()
            await _write("cancelled", held)
            agent = await client.start_workflow(
                Support.run, "Where are my orders?", id="agent", task_queue=QUEUE
            )
            await agent.signal(Support.approve, True)
            await agent.result()
            await _write("agent", agent)


async def _called(name: str) -> None:
    print(name)


async def _foreign(client: Client) -> WorkflowHandle[object, object]:
    theirs = Invocation.of("run-2", "tool", 1, TOOL, "tools", "ask")
    request = OperationRequest(client.namespace, QUEUE, ZIGAI, theirs, BRISK)
    handle = await client.start_workflow(
        ZIGAI.workflow,
        document_value(request.encode()),
        id=theirs.stable_key,
        task_queue=QUEUE,
    )
    await handle.result()
    return handle


async def _write(name: str, handle: WorkflowHandle[object, object]) -> None:
    path = HISTORIES / f"{name}.history.json"
    if not path.exists():
        path.write_text((await handle.fetch_history()).to_json() + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(record())
