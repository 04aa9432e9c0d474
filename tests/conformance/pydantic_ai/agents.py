"""Agents that make the calls a test wants, and what came back to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, RetryPromptPart, ToolReturnPart
from pydantic_ai.toolsets import AbstractToolset

from perdure.adapters.pydantic_ai import Durable
from perdure.context import Context
from perdure.errors import EffectAmbiguous, RunParked
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.journal import MemoryJournal


def caller(
    *calls: Call | str,
    tools: Sequence[Any] = (),
    toolsets: Sequence[AbstractToolset[Any]] = (),
    **durable: Any,
) -> Agent[None, str]:
    """Return an agent that makes all calls at once and then says that it is done."""
    made = [Call(call) if isinstance(call, str) else call for call in calls]
    return Agent(
        ScriptedModel([Reply(calls=made), "Done."]),
        name="caller",
        tools=tools,
        toolsets=toolsets,
        capabilities=[Durable(**durable)],
    )


def asking(agent: Agent[None, str]) -> Callable[[Context], Awaitable[list[Any]]]:
    """Return the code of a run that asks an agent, and returns what its tools told the model."""

    async def code(context: Context) -> list[Any]:
        return list(_told((await agent.run("Go.")).all_messages()))

    return code


def told_twice(journal: MemoryJournal, agent: Agent[None, str]) -> list[Any]:
    """Return what the tools told the model, which a replay repeats without calling anything."""
    first = journal.run(asking(agent))
    assert journal.run(asking(agent)) == first
    assert journal.executed == 0
    return first


def parked(journal: MemoryJournal, agent: Agent[None, str]) -> EffectAmbiguous:
    """Run an agent up to the doubt that parks its run, and return the doubt."""
    with pytest.raises(RunParked) as caught:
        journal.run(asking(agent))
    assert isinstance(caught.value.cause, EffectAmbiguous)
    return caught.value.cause


def states(journal: MemoryJournal) -> list[tuple[str, str]]:
    """Return the target and the state of each receipt, sorted."""
    return sorted((each.target, each.state.value) for each in journal.receipts.values())


def _told(messages: list[ModelMessage]) -> Iterator[Any]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolReturnPart | RetryPromptPart):
                yield part.content
