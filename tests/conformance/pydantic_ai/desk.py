"""An agent that refunds with approval, and what it asks for and is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, RunContext, ToolDefinition
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, RetryPromptPart, ToolReturnPart
from pydantic_ai.toolsets import ExternalToolset

from perdure import App, Context
from perdure.adapters.pydantic_ai import Durable
from perdure.approvals import Approval
from perdure.testing.manual_clock import ManualClock
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.harness import RUN
from tests.waiting import waiting_app

DEPOT = ExternalToolset[None](
    [ToolDefinition(name="ship", parameters_json_schema={"type": "object", "properties": {}})],
    id="depot",
)
FOUR = (
    Call("refund", {"order": 1}),
    Call("look", {"order": 2}),
    Call("refund", {"order": 3}),
    Call("ship", {"order": 4}),
)


class Desk:
    """An agent that refunds with approval, looks without, and has things shipped elsewhere.

    It is made anew for every App, as by a process; what it did is counted over all of them.
    """

    def __init__(self, folder: Path, *calls: Call, clock: ManualClock | None = None) -> None:
        self._folder = folder
        self._calls = calls or FOUR
        self.clock = clock
        self.done: Counter[str] = Counter()
        self.seen: list[Any] = []

    def app(self, *capabilities: Any, **options: Any) -> App:
        """Return an App whose one function asks the agent."""
        app = waiting_app(self._folder, clock=self.clock)
        agent = self.agent(*capabilities, **options)

        @app.run(version=1, name="turn")
        async def turn(context: Context) -> list[str]:
            result = await agent.run("Go.")
            if isinstance(result.output, DeferredToolRequests):
                return [f"deferred {len(result.output.approvals)}"]
            return told(result.all_messages())

        return app

    def agent(self, *capabilities: Any, **options: Any) -> Agent[None, Any]:
        asked = ScriptedModel([Reply(calls=self._calls), "Done."], on_request=self._on_request)
        durable = options.pop("durable", {})
        agent = Agent[None, Any](
            asked,
            name="desk",
            toolsets=[DEPOT],
            capabilities=[Durable(**durable), *capabilities],
            **options,
        )
        agent.tool_plain(requires_approval=True)(self.refund)
        agent.tool_plain(self.look)
        agent.tool(self.careful)
        return agent

    def refund(self, order: int) -> str:
        self.done[f"refund {order}"] += 1
        return f"refunded {order}"

    def look(self, order: int) -> str:
        self.done[f"look {order}"] += 1
        return f"looked {order}"

    def careful(self, ctx: RunContext[None], order: int) -> str:
        self.done[f"careful {order}"] += 1
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "large"})
        return f"was careful {order}"

    async def see(self, ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            self.seen.append(event)

    def _on_request(self, request: Any) -> None:
        self.done["request"] += 1


def told(messages: Sequence[ModelMessage]) -> list[str]:
    """Return what the tools told the model, in order."""
    parts = [part for message in messages for part in message.parts]
    return [
        str(part.content) for part in parts if isinstance(part, ToolReturnPart | RetryPromptPart)
    ]


async def asked(app: App, count: int) -> dict[str, Approval]:
    """Return what a run asks for, as soon as that is so many things."""
    while len(found := await app.approvals(RUN)) < count:
        await asyncio.sleep(0)
    return {each.item_id: each for each in found}
