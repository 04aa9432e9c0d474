from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    AgentStreamEvent,
    CustomEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.adapters.pydantic_ai import Durable
from perdure.context import Context, current
from perdure.functions import operation
from perdure.testing.scripted import Call, Reply, Request, ScriptedModel, Trouble
from tests.conformance.pydantic_ai.journal import MemoryJournal

REPLY = Reply(thinking="Let me think about it.", text="It is a long answer.", calls=[Call("look")])


def look() -> str:
    return "seen"


def agent_of(model: Model, **options: Any) -> Agent[None, str]:
    return Agent(model, name="stream", tools=[look], capabilities=[Durable(**options)])


def kinds(events: list[AgentStreamEvent]) -> list[str]:
    return [event.event_kind for event in events]


def test_chunks_reach_the_handler_while_the_model_is_still_writing() -> None:
    seen: list[str] = []
    written: list[int] = []

    async def handler(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            if isinstance(event, PartDeltaEvent):
                context = current()
                assert context is not None
                seen.append(f"{context.namespace} after {len(written)}")

    def on_chunk(request: Request, number: int) -> None:
        written.append(number)

    model = ScriptedModel(["Two chunks and more."], chunk_characters=8, on_chunk=on_chunk)
    agent = agent_of(model, event_stream_handler=handler)
    journal = MemoryJournal()
    journal.run(lambda context: agent.run("Hi."))
    assert seen == ["model.stream.1 after 1", "model.stream.1 after 2"]
    seen.clear()
    journal.run(lambda context: agent.run("Hi."))
    assert seen == []


def test_a_replayed_stream_is_start_delta_and_end_and_then_its_usage() -> None:
    async def code(context: Context) -> tuple[list[str], str, int]:
        events: list[Any] = []
        async with agent.iter("Hi.") as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as stream:
                        events += [event async for event in stream]
                        usage = stream.usage
        starts = [event for event in events if isinstance(event, PartStartEvent)]
        assert isinstance(starts[1].part, TextPart)
        assert starts[1].part.content == ""
        ends = [event for event in events if isinstance(event, PartEndEvent)]
        assert isinstance(ends[1].part, TextPart)
        return kinds(events), ends[1].part.content, usage.output_tokens

    agent = agent_of(ScriptedModel([REPLY, "Done."]))
    journal = MemoryJournal()
    live = journal.run(code)
    assert journal.run(code) == live
    assert journal.executed == 0
    events, text, tokens = live
    part = ["part_start", "part_delta", "part_end"]
    text_part = ["part_start", "part_delta", "final_result", "part_end"]
    assert events == [*part, *text_part, "part_start", "part_end", *text_part]
    assert text == REPLY.text
    assert tokens > 0


def test_a_response_that_is_streamed_to_its_reader_numbers_its_calls() -> None:
    async def code(context: Context) -> list[str]:
        async with agent.run_stream("Hi.") as stream:
            return [text async for text in stream.stream_text(delta=True)]

    agent = agent_of(ScriptedModel([REPLY, "Done."]))
    journal = MemoryJournal()
    assert journal.run(code) == journal.run(code) == [REPLY.text]
    assert journal.steps() == [("model.stream", 1), ("tool.call", 1)]


def test_streamed_and_buffered_requests_share_one_sequence() -> None:
    async def code(context: Context) -> None:
        async with agent.iter("Hi.") as run:
            node = run.next_node
            while not Agent.is_end_node(node):
                if Agent.is_model_request_node(node) and not run.usage.requests:
                    async with node.stream(run.ctx) as stream:
                        assert [event async for event in stream]
                node = await run.next(node)

    agent = agent_of(ScriptedModel([Reply(calls=[Call("look")]), "Done."]))
    journal = MemoryJournal()
    journal.run(code)
    assert journal.steps() == [("model.request", 2), ("model.stream", 1), ("tool.call", 1)]


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_stream_that_broke_off_is_asked_for_again_only_if_nothing_was_seen(chunks: int) -> None:
    broken = Trouble(ModelHTTPError(503, "scripted", headers={"retry-after": "0"}), chunks)
    model = ScriptedModel([Reply(text="One two three four.", troubles=[broken])])
    agent = agent_of(model)

    async def code(context: Context) -> tuple[list[str], str]:
        events: list[Any] = []
        try:
            async with agent.iter("Hi.") as run:
                async for node in run:
                    if Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as stream:
                            async for event in stream:
                                events += [event]
        except ModelHTTPError as error:
            (response,) = [v for v in vars(error).values() if isinstance(v, ModelResponse)]
            return kinds(events), response.text or ""
        return kinds(events), "whole"

    journal = MemoryJournal()
    live = journal.run(code)
    assert journal.run(code) == live
    assert journal.executed == 0
    assert live[1] == ("One two thre" if chunks else "whole")
    assert live[0][:2] == ["part_start", "part_delta"]


@dataclass(kw_only=True)
class Progress(CustomEvent):
    percent: int


def test_events_are_delivered_once_and_known_by_their_place_or_by_what_they_say() -> None:
    seen: list[object] = []
    crash = asyncio.Event()
    offset = 0

    async def handler(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            if isinstance(event, Progress):
                seen.append(event.percent)
            elif not event.event_kind.startswith(("part_", "final_")):
                seen.append(event.event_kind)

    @operation(read_only=True)
    async def work(ctx: RunContext[None]) -> str:
        for percent in (10, 20, 20):
            await ctx.emit(Progress(percent=percent + offset))
        if not crash.is_set():
            crash.set()
            await asyncio.Event().wait()
        return "worked"

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("work")]), "Done."]),
        name="worker",
        tools=[work],
        capabilities=[Durable(event_stream_handler=handler)],
    )

    async def crashing(context: Context) -> None:
        run = asyncio.create_task(agent.run("Hi."))
        await crash.wait()
        while len(seen) < 4:
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    journal = MemoryJournal()
    journal.run(crashing)
    assert seen == ["function_tool_call", 10, 20, 20]
    seen.clear()
    offset = 10  # the body runs again and says 20, 30, 30
    journal.run(lambda context: agent.run("Hi."))
    assert seen == [30, 30, "function_tool_result"]
    seen.clear()
    journal.run(lambda context: agent.run("Hi."))
    assert seen == []


def test_a_response_that_a_provider_takes_its_time_over_is_waited_for_once() -> None:
    asked: list[int] = []

    class Slow(FunctionModel):
        def continuation_delay(self, response: ModelResponse) -> float:
            return 0.001

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        state = "suspended" if len(asked) < 3 else "complete"
        return ModelResponse([TextPart("There.")], state=state, provider_response_id="job")

    agent = agent_of(Slow(answer))

    async def code(context: Context) -> bytes:
        return (await agent.run("Hi.")).all_messages_json()

    journal = MemoryJournal()
    assert journal.run(code) == journal.run(code)
    assert asked == [1, 2, 2]
    waits = [("model.wait", 1), ("model.wait", 2)]
    assert journal.steps() == [*(("model.request", n) for n in (1, 2, 3)), *waits]


def test_a_handler_given_to_a_run_sees_every_execution() -> None:
    seen: list[str] = []

    async def handler(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        seen.extend([event.event_kind async for event in events])

    agent = agent_of(ScriptedModel(["Hi."]))
    journal = MemoryJournal()
    for _ in range(2):
        journal.run(lambda context: agent.run("Hi.", event_stream_handler=handler))
    assert seen == ["part_start", "part_delta", "final_result", "part_end"] * 2
