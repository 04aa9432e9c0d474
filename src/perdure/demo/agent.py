from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from perdure import SideEffectSupport
from perdure.adapters.pydantic_ai import Durable
from perdure.demo.gate import Gate
from perdure.demo.report import Report
from perdure.demo.shop import Shop
from perdure.demo.story import ANSWER, INSTRUCTIONS, ORDER, PAID_CENTS
from perdure.demo.tools import build_tools
from perdure.testing.scripted import Call, Reply, ScriptedModel

_PACE_SECONDS: Final = 0.03
_CLOCK: Final = "clock"


def build_agent(
    path: Path, support: SideEffectSupport, gate: Gate, model: Model | None
) -> Agent[Shop, str]:
    """Return the agent: an ordinary one, but for `Durable`, the counting and the gate."""
    shop = Shop(path)
    durable = Durable[Shop](event_stream_handler=_watcher(gate), trusted_servers={_CLOCK})
    agent: Agent[Shop, str] = Agent(
        _Counted(model or _scripted(), shop, gate),
        name="refunds",
        deps_type=Shop,
        instructions=INSTRUCTIONS,
        toolsets=[build_tools(support, shop, gate), _clock(path)],
        capabilities=[durable],
    )
    return agent


def _scripted() -> ScriptedModel:
    about = {"order": ORDER}
    script = [
        Reply(calls=[Call("look_up_order", about), Call("track_parcel", about)]),
        Reply(calls=[Call("refund_order", {**about, "cents": PAID_CENTS})]),
        Reply(calls=[Call("bank_day", {"days": 5})]),
        Reply(text=ANSWER),
    ]
    return ScriptedModel(script, chunk_delay_seconds=_PACE_SECONDS)


def _clock(shop: Path) -> MCPToolset[Shop]:
    """Return the tools of a real MCP server, a process of its own behind pipes."""
    command = ["-m", "perdure.demo.clock_server", str(shop)]
    transport = StdioTransport(command=sys.executable, args=command, keep_alive=False)
    return MCPToolset(transport, id=_CLOCK)


def _watcher(gate: Gate) -> Any:
    async def watch(ctx: RunContext[Shop], events: AsyncIterable[AgentStreamEvent]) -> None:
        del ctx
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ) if text:
                    gate.report(Report("said", text))
                    gate.text_arrived(text)
                case FunctionToolCallEvent(part=part):
                    gate.report(Report("called", f"{part.tool_name} {part.args_as_json_str()}"))
                case FunctionToolResultEvent(part=part):
                    gate.report(Report("returned", f"{part.tool_name}"))
                case _:
                    pass

    return watch


class _Counted(WrapperModel):
    """Counts in the shop how often the model was really asked, and for which response."""

    def __init__(self, wrapped: Model, shop: Shop, gate: Gate) -> None:
        super().__init__(wrapped)
        self._shop = shop
        self._gate = gate

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Count a request and pass it on."""
        self._count(messages)
        return await super().request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Count a streamed request and pass it on."""
        self._count(messages)
        async with super().request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            yield stream

    def _count(self, messages: list[ModelMessage]) -> None:
        number = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        self._shop.visit("model", str(number))
        self._gate.report(Report("asked", number=number))
