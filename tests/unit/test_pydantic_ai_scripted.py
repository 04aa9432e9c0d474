from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent

from perdure.testing.scripted import Call, Reply, Request, ScriptedModel, Trouble

SCRIPT = [
    Reply(thinking="Hm, let me see.", text="One moment.", calls=[Call("add", {"a": 2, "b": 3})]),
    "It is five, I am sure.",
]


def add(a: int, b: int) -> int:
    return a + b


def agent_of(model: ScriptedModel) -> Agent[None, str]:
    return Agent(model, tools=[add])


def run(agent: Agent[None, str], **options: Any) -> list[Any]:
    return asyncio.run(agent.run("2 + 3?", **options)).all_messages()


def shape(messages: list[Any]) -> list[Any]:
    return [
        [(part.part_kind, getattr(part, "args", None) or part.content) for part in message.parts]
        + ([message.usage, message.finish_reason] if isinstance(message, ModelResponse) else [])
        for message in messages
    ]


def test_a_streamed_answer_is_the_buffered_one_in_chunks() -> None:
    chunks: list[int] = []
    pieces: list[Any] = []

    async def watch(ctx: Any, events: Any) -> None:
        taken = [event async for event in events]
        pieces.extend(e for e in taken if isinstance(e, PartStartEvent | PartDeltaEvent))

    model = ScriptedModel(SCRIPT, chunk_characters=5, on_chunk=lambda _, n: chunks.append(n))
    streamed = run(agent_of(model), event_stream_handler=watch)
    assert shape(streamed) == shape(run(agent_of(ScriptedModel(SCRIPT))))
    assert chunks == [*range(1, 10), *range(1, 6)]
    assert len(pieces) == len(chunks)


def test_a_fresh_model_goes_on_where_the_conversation_stands() -> None:
    messages = run(agent_of(ScriptedModel(SCRIPT)))
    requests: list[Request] = []
    model = ScriptedModel([*SCRIPT, "Still five."], on_request=requests.append)
    result = asyncio.run(agent_of(model).run("Sure?", message_history=messages))
    assert result.output == "Still five."
    assert [(request.number, request.attempt) for request in requests] == [(3, 1)]
    assert (
        asyncio.run(agent_of(model).run("Really?", message_history=result.all_messages())).output
        == "Still five."
    ), "past its end a script gives its last reply"


def test_troubles_are_met_once_each_also_across_processes(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    troubles = [Trouble(ModelHTTPError(429, "scripted")), Trouble(ModelHTTPError(500, "scripted"))]

    def fresh() -> Agent[None, str]:
        return agent_of(ScriptedModel([Reply(text="Fine.", troubles=troubles)], log=log))

    for status in (429, 500):
        with pytest.raises(ModelHTTPError) as caught:
            run(fresh())
        assert caught.value.status_code == status
    assert run(fresh())[-1].text == "Fine."
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["request"], line["streamed"]) for line in lines] == [(1, False)] * 3


def test_a_stream_can_break_off_after_some_chunks() -> None:
    trouble = Trouble(ModelHTTPError(500, "scripted"), after_chunks=2)
    model = ScriptedModel([Reply(text="four chunks", troubles=[trouble])], chunk_characters=3)
    seen: list[Any] = []

    async def watch(ctx: Any, events: Any) -> None:
        nonlocal seen
        async for event in events:
            seen += [event]

    with pytest.raises(ModelHTTPError):
        run(agent_of(model), event_stream_handler=watch)
    assert sum(isinstance(event, PartStartEvent | PartDeltaEvent) for event in seen) == 2


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reply"):
        ScriptedModel([])
