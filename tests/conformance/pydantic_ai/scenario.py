"""One turn with everything in it: parallel tools, a sub-agent, MCP, a retry, an approval."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.run import AgentRunResult
from pydantic_ai.toolsets import FunctionToolset

from perdure.adapters.pydantic_ai import Durable
from perdure.context import Context
from perdure.functions import operation
from perdure.testing.scripted import Call, Reply, Request, ScriptedModel

SCRIPT: Sequence[Reply | str] = (
    Reply(
        thinking="Three things at once.",
        text="Let me look at all of that.",
        calls=[
            Call("charge", {"order": 1, "tags": ["b", "a", "c"]}),
            Call("ask", {"question": "why?"}),
            Call("charge", {"order": 2, "tags": []}),
            Call("now_in", {"zone": "UTC"}),
        ],
    ),
    Reply(calls=[Call("flaky", id="call-1-1"), Call("now_in", {"zone": "CET"})]),
    Reply(calls=[Call("flaky"), Call("refund", {"order": 1})]),
    "All done.",
)


@dataclass
class Shop:
    """The agents of the scenario and a count of everything that they did outside."""

    streamed: bool = False
    delays: Sequence[float] = (0, 0, 0)
    done: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.helper = Agent(
            ScriptedModel(["Because."], on_request=self._on_request),
            name="helper",
            capabilities=[Durable()],
        )
        self.agent = Agent(
            ScriptedModel(SCRIPT, on_request=self._on_request),
            name="shop",
            instructions="Be brief.",
            output_type=[str, DeferredToolRequests],
            toolsets=[
                FunctionToolset([self.charge, self.ask], id="till"),
                MCPToolset(self._server(), id="clock"),
            ],
            capabilities=[Durable(event_stream_handler=self._seen if self.streamed else None)],
        )
        self.agent.tool(self.flaky)
        self.agent.tool_plain(requires_approval=True)(self.refund)

    async def turn(self, context: Context) -> AgentRunResult[Any]:
        """Run the agent until it asks for an approval, give it, and run it to its end."""
        del context
        asked = await self.agent.run("Please.")
        assert isinstance(asked.output, DeferredToolRequests)
        approvals = {call.tool_call_id: True for call in asked.output.approvals}
        return await self.agent.run(
            message_history=asked.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=dict(approvals)),
        )

    async def charge(self, order: int, tags: set[str]) -> dict[str, Any]:
        await asyncio.sleep(self.delays[order - 1])
        self.done[f"charge {order}"] += 1
        return {"charged": order, "tags": sorted(tags)}

    @operation(read_only=True)
    async def ask(self, ctx: RunContext, question: str) -> str:
        await asyncio.sleep(self.delays[2])
        self.done["ask"] += 1
        return (await self.helper.run(question, usage=ctx.usage)).output

    def flaky(self, ctx: RunContext) -> str:
        self.done["flaky"] += 1
        if ctx.retry == 0:
            raise ModelRetry("Not yet.")
        return "Now."

    def refund(self, order: int) -> str:
        self.done["refund"] += 1
        return f"refunded {order}"

    def _on_request(self, request: Request) -> None:
        self.done["request"] += 1

    async def _seen(self, ctx: RunContext, events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            self.done[f"event {event.event_kind}"] += 1

    def _server(self) -> MCPServer:
        server = MCPServer("clock")

        @server.tool()
        def now_in(zone: str) -> str:
            self.done[f"now_in {zone}"] += 1
            return f"12:00 in {zone}"

        return server
