"""A tool call that a worker on Temporal performs, once for its key, whoever asks and how often.

Run it with `uv run python examples/temporal_operation.py`, which starts a development server of its
own and gets its program first if need be. In earnest: `await Client.connect("temporal:7233")`.
"""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.journal import Binding, Handlers, Invocation, OperationKind, Success
from perdure.runtimes.temporal import TemporalRuntime, operation_worker

TOOL = OperationKind.TOOL_CALL

handlers = Handlers()


@handlers.tool_call("shop")
async def shop(invocation: Invocation) -> Success:
    print(f"ordering {invocation.input_json.decode()} as {invocation.stable_key}")
    return Success(b'{"order": 7}')


async def order(client: Client, run_id: str) -> list[str]:
    """Place the same order twice, as a program does that lost the first answer."""
    runtime = TemporalRuntime(client, task_queue=run_id, registrations=[(TOOL, "shop")])
    binding = Binding(run_id=run_id, runtime=runtime, handler_ids={TOOL: "shop"})
    async with operation_worker(client, run_id, handlers):
        answers = [await binding.execute(TOOL, "order", 1, b'"a book"') for _ in range(2)]
    return [answer.output_json.decode() for answer in answers]


async def main() -> None:
    async with await WorkflowEnvironment.start_local() as server:
        print(await order(server.client, "run-1"))


if __name__ == "__main__":
    asyncio.run(main())
