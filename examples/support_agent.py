"""A Pydantic AI agent that survives the death of its process.

Run it with `uv run python examples/support_agent.py` (a scripted model, no key needed), or give a
real one: `... support_agent.py openai:gpt-5`. Run it again, and it answers from the journal.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent

from perdure import App, Context, OperationIdentity, effect, operation
from perdure.adapters.pydantic_ai import Durable
from perdure.testing.scripted import Call, Reply, ScriptedModel

script = ScriptedModel(
    [
        Reply(calls=[Call("look_up", {"order": "42"})]),
        Reply(calls=[Call("refund", {"order": "42", "reason": "arrived broken"})]),
        "I am sorry. Order 42 is refunded.",
    ]
)
agent = Agent(sys.argv[1] if sys.argv[1:] else script, name="support", capabilities=[Durable()])
app = App("sqlite:///support.db")


@agent.tool_plain
@operation(read_only=True)
def look_up(order: str) -> dict[str, str]:
    """Look up an order."""
    print(f"(looking up {order})")
    return {"order": order, "status": "delivered", "paid": "19.99"}


@agent.tool_plain
@effect(support="idempotent", target="payments")
def refund(order: str, reason: str, operation: OperationIdentity) -> str:
    """Refund an order."""
    # A payment provider is given the key, and drops a repeat that it knows by it.
    print(f"(refunding {order}: {reason}, idempotency key {operation.operation_key})")
    return f"refunded {order}"


@app.run(version=1)
async def answer(context: Context, question: str) -> str:
    """Let the agent answer one question."""
    del context  # the agent finds the run by itself
    result = await agent.run(question)
    return result.output


async def main() -> None:
    """Ask one question under an id of its own: asked again, it is the same run."""
    async with app:
        handle = await app.start(answer, "Order 42 came broken.", run_id="ticket-42")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
