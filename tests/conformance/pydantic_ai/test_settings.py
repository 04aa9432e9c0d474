from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from perdure.adapters.pydantic_ai import Durable
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.journal import MemoryJournal


class Deaf(FunctionModel):
    unsupported_settings = frozenset({"max_retries"})


def listening(seen: list[Any], kind: type[FunctionModel] = FunctionModel) -> Agent[None, str]:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((info.model_settings or {}).get("max_retries"))
        return ModelResponse([TextPart("Hi.")])

    return Agent(
        kind(answer),
        name="settings",
        model_settings={"max_retries": 4},
        capabilities=[Durable()],
    )


def test_the_retries_of_the_providers_client_are_off_inside_a_run_and_only_there() -> None:
    seen: list[Any] = []
    agent = listening(seen)
    MemoryJournal().run(lambda context: agent.run("Hi."))
    asyncio.run(agent.run("Hi."))
    assert seen == [0, 4]


def test_a_model_that_ignores_the_setting_is_not_given_it() -> None:
    seen: list[Any] = []
    agent = listening(seen, Deaf)
    agent.model_settings = None
    MemoryJournal().run(lambda context: agent.run("Hi."))
    assert seen == [None]


def test_retries_asked_for_beside_those_of_the_journal_are_refused() -> None:
    seen: list[Any] = []
    with pytest.raises(UserError, match=r"max_retries=2 .* Durable\(retry=\.\.\.\)"):
        MemoryJournal().run(
            lambda context: listening(seen).run("Hi.", model_settings={"max_retries": 2})
        )
    assert seen == []


def test_outside_of_a_run_the_agent_behaves_as_if_nothing_were_there() -> None:
    seen: Counter[str] = Counter()

    async def handler(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            seen[event.event_kind] += 1

    def look() -> str:
        return "seen"

    def more() -> str:
        return "more"

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("look"), Call("more")]), "A whole long answer."]),
        name="outside",
        tools=[look],
        capabilities=[Durable(event_stream_handler=handler)],
    )
    results = [
        asyncio.run(agent.run("Hi.", toolsets=[FunctionToolset([more], id="more")]))
        for _ in range(2)
    ]
    assert {result.output for result in results} == {"A whole long answer."}
    assert len({result.run_id for result in results}) == 2
    assert seen["function_tool_result"] == 4
    assert seen["part_delta"] == 2, "live chunks, not normalised ones"


def test_what_has_no_lasting_name_is_refused() -> None:
    def look() -> str:
        return "seen"

    model = ScriptedModel(["Hi."])
    with pytest.raises(UserError, match="unique `name`"):
        Agent(model, capabilities=[Durable()])
    with pytest.raises(UserError, match="unique `id`"):
        Agent(model, name="a", toolsets=[FunctionToolset([look])], capabilities=[Durable()])
    agent = Agent(model, name="a", capabilities=[Durable()])
    with pytest.raises(UserError, match="cannot be added at runtime"):
        MemoryJournal().run(
            lambda context: agent.run("Hi.", toolsets=[FunctionToolset([look], id="late")])
        )


def test_metadata_of_a_tool_is_a_config_or_false() -> None:
    looked: list[str] = []

    def look() -> str:
        looked.append("seen")
        return "seen"

    def agent(metadata: dict[str, Any]) -> Agent[None, str]:
        made: Agent[None, str] = Agent(
            ScriptedModel([Reply(calls=[Call("look")]), "Done."]),
            name="meta",
            capabilities=[Durable()],
        )
        made.tool_plain(metadata=metadata)(look)
        return made

    with pytest.raises(UserError, match="is a ToolConfig or False"):
        MemoryJournal().run(lambda context: agent({"perdure": {"retry": 3}}).run("Hi."))
    journal = MemoryJournal()
    for _ in range(2):
        journal.run(lambda context: agent({"perdure": False}).run("Hi."))
    assert looked == ["seen", "seen"], "left out of the journal, it runs on every execution"
