"""What agents make when they are first used, made once before the processes of a test are forked.

Imported where it runs: a turn whose tools and schemas are of no further use.
"""

from __future__ import annotations

import gc
import tempfile

import anyio._backends._asyncio  # noqa: F401 - these three are imported late, in each process
import genai_prices.data  # noqa: F401
import jsonschema  # noqa: F401
from pydantic_ai import Agent

from perdure import App, Context, effect
from perdure.adapters.pydantic_ai import Durable
from perdure.testing.scripted import Call, Reply, ScriptedModel


def take_turns(url: str) -> None:
    """Take a turn and stream another, each with a call of a tool."""
    app = App(url)
    model = ScriptedModel([Reply(calls=[Call("act")]), "Done."])
    agent = Agent(model, name="warm", capabilities=[Durable()])

    @agent.tool_plain
    @effect(support="idempotent")
    async def act() -> str:
        return "acted"

    @app.run(version=1)
    async def turns(context: Context) -> None:
        await agent.run("Go.")
        async with agent.iter("Go on.") as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as stream:
                        async for _ in stream:
                            pass

    app.run_sync(turns, run_id="run-1")


with tempfile.TemporaryDirectory() as folder:
    take_turns(f"sqlite:///{folder}/runs.db")

# What is never looked at is never copied.
gc.collect()
gc.freeze()
