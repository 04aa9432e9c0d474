"""Agents inside a run are held to a budget, by what the run has recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.exceptions import ModelHTTPError, ModelServerError, UserError
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset

from perdure.adapters.pydantic_ai import Budget, Durable
from perdure.context import Context
from perdure.errors import BudgetExceeded, OperationFailed
from perdure.functions import operation
from perdure.journal.spending import Spent, Usage
from perdure.retry import RetryPolicy
from perdure.testing.scripted import Call, Reply, ScriptedModel, Trouble
from tests.conformance.pydantic_ai.journal import MemoryJournal

AT_ONCE = RetryPolicy(initial_seconds=0)
OVERLOADED = ModelHTTPError.for_category(
    ModelServerError, status_code=503, model_name="m", hint="Wait."
)


class Desk:
    """An agent whose script calls a tool in each turn but the last, and counts what happens."""

    def __init__(
        self,
        *,
        turns: int = 4,
        calls: int = 1,
        budget: Budget | None = None,
        name: str = "desk",
        troubles: int = 0,
        **options: Any,
    ) -> None:
        called = Reply(
            calls=[Call("look")] * calls,
            troubles=[Trouble(OVERLOADED)] * troubles,
            input_tokens=10,
            output_tokens=1,
        )
        self.requests: list[int] = []
        self.looked = 0
        model = ScriptedModel(
            [called] * (turns - 1) + [Reply(text="Done.", input_tokens=10, output_tokens=1)],
            on_request=lambda request: self.requests.append(request.number),
        )
        durable = Durable[None](budget=budget, retry=AT_ONCE, **options)
        self.agent = Agent(model, name=name, capabilities=[durable])

        @self.agent.tool_plain
        @operation(read_only=True)
        async def look() -> str:
            self.looked += 1
            return "seen"

    async def __call__(self, context: Context) -> str:
        return (await self.agent.run("Hi.")).output


def refused(journal: MemoryJournal, code: Any) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as caught:
        journal.run(code)
    return caught.value


async def nothing(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize(
    ("budget", "name", "made"),
    [
        (Budget(requests=2), "requests", 2),
        (Budget(input_tokens=25), "input_tokens", 3),
        (Budget(total_tokens=22), "total_tokens", 2),
        (Budget(tool_calls=1), "tool_calls", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_run_ends_at_its_budget_and_so_does_every_replay(
    budget: Budget, name: str, made: int
) -> None:
    desk, journal = Desk(budget=budget), MemoryJournal()
    errors = [refused(journal, desk) for _ in range(3)]
    assert {(error.name, error.limit) for error in errors} == {(name, getattr(budget, name))}
    assert len({str(error) for error in errors}) == 1
    assert desk.requests == list(range(1, made + 1))
    assert journal.executed == 0
    # With more, the same run goes on where it was refused.
    larger = Desk(budget=Budget(requests=9))
    assert journal.run(larger) == "Done."
    assert larger.requests == list(range(made + 1, 5))
    # What is recorded is answered, whatever the budget is by then.
    assert journal.run(Desk(budget=Budget(requests=0, tool_calls=0))) == "Done."


def test_streamed_requests_count_too() -> None:
    desk, journal = Desk(budget=Budget(requests=2), event_stream_handler=nothing), MemoryJournal()
    for _ in range(2):
        assert refused(journal, desk).name == "requests"
    assert desk.requests == [1, 2]


def test_calls_beyond_the_budget_are_made_all_or_not_at_all() -> None:
    desk, journal = Desk(budget=Budget(tool_calls=5), calls=3), MemoryJournal()
    assert refused(journal, desk).used == 6
    assert (desk.requests, desk.looked) == ([1, 2], 3)


def test_calls_of_output_tools_are_counted_and_not_refused() -> None:
    model = ScriptedModel([Reply(calls=[Call("final_result", {"response": 7})])])
    agent = Agent(
        model,
        name="counter",
        output_type=int,
        capabilities=[Durable(budget=Budget(tool_calls=0))],
    )
    journal = MemoryJournal()

    async def code(context: Context) -> tuple[int, int]:
        output = (await agent.run("How many?")).output
        return output, (await context.spending()).spent.billed.tool_calls

    assert [journal.run(code), journal.run(code)] == [(7, 1), (7, 1)]


def test_failed_attempts_are_billed_and_not_effective() -> None:
    budget = Budget(requests=3)
    desk, journal = Desk(budget=budget, troubles=1), MemoryJournal()
    assert refused(journal, desk).used == 4
    assert desk.requests == [1, 1, 2, 2]

    async def spent(context: Context) -> Spent:
        return (await context.spending()).spent

    assert journal.run(spent) == Spent(
        Usage(requests=4, tool_calls=2, input_tokens=20, output_tokens=2, unmeasured=2),
        Usage(requests=2, tool_calls=2, input_tokens=20, output_tokens=2),
    )
    effective = Desk(budget=Budget(requests=4, of="effective"), troubles=1)
    assert journal.run(effective) == "Done."


def test_agents_without_a_budget_count_for_those_that_have_one() -> None:
    other, desk = Desk(turns=3, name="other"), Desk(budget=Budget(requests=4))

    async def both(context: Context) -> None:
        for agent in (other, desk):
            await agent(context)

    journal = MemoryJournal()
    for _ in range(2):
        assert refused(journal, both).used == 4
    assert (other.requests, desk.requests) == ([1, 2, 3], [1])


def with_agents_inside(inner: list[Desk], budget: Budget) -> Agent[None, str]:
    """Return an agent that calls a tool for each of others, all at once."""
    script = [Reply(calls=[Call(f"ask_{n}") for n in range(len(inner))]), "Done."]
    agent = Agent(ScriptedModel(script), name="outer", capabilities=[Durable(budget=budget)])
    for number, desk in enumerate(inner):
        agent.tool_plain(name=f"ask_{number}")(operation(read_only=True)(asking(desk)))
    return agent


def asking(desk: Desk) -> Any:
    async def ask() -> str:
        return (await desk.agent.run("Hi.")).output

    return ask


def test_agents_inside_of_tools_are_held_to_the_budget_of_the_agent_outside() -> None:
    inner = Desk(turns=9, name="inner")
    agent, journal = with_agents_inside([inner], Budget(requests=4)), MemoryJournal()
    for _ in range(2):
        with pytest.raises(OperationFailed) as failed:
            journal.run(lambda context: agent.run("Hi."))
        assert failed.value.code == "BudgetExceeded"
        assert inner.requests == [1, 2, 3]


def test_agents_side_by_side_share_what_is_left() -> None:
    inner = [Desk(turns=9, name=f"inner-{n}") for n in range(3)]
    agent, journal = with_agents_inside(inner, Budget(requests=8)), MemoryJournal()

    async def code(context: Context) -> Any:
        return await agent.run("Hi.")

    for _ in range(2):
        with pytest.raises(OperationFailed, match="BudgetExceeded"):
            journal.run(code)
        assert sum(len(desk.requests) for desk in inner) == 7


def test_what_was_recorded_counts_before_it_is_asked_for_again() -> None:
    first, second = Desk(budget=Budget(requests=5)), Desk(name="other", budget=Budget(requests=5))
    journal = MemoryJournal()

    async def together(context: Context, reverse: bool = False) -> list[Any]:
        branches = [context.branch(name) for name in ("a", "b")]

        async def one(desk: Desk, branch: Context) -> Any:
            branch.enter()
            return await desk(branch)

        work = [one(first, branches[0]), one(second, branches[1])]
        if reverse:
            work.reverse()
        return await asyncio.gather(*work, return_exceptions=True)

    before = journal.run(together)
    assert sum(isinstance(each, BudgetExceeded) for each in before) >= 1
    made = (first.requests[:], second.requests[:])
    assert sum(map(len, made)) == 5
    again = journal.run(lambda context: together(context, reverse=True))
    assert [*map(repr, reversed(again))] == [*map(repr, before)]
    assert (first.requests, second.requests) == made


def late() -> FunctionToolset[None]:
    toolset = FunctionToolset[None](id="late")

    @toolset.tool_plain
    def tell() -> str:
        return "late"

    return toolset


@pytest.mark.parametrize(
    "toolset", [late(), DynamicToolset[None](lambda ctx: late(), id="later")], ids=["plain", "made"]
)
@pytest.mark.parametrize("overridden", [False, True])
def test_a_toolset_that_comes_with_a_run_is_refused_before_the_first_request(
    toolset: AbstractToolset[None], overridden: bool
) -> None:
    desk, journal = Desk(turns=1), MemoryJournal()

    async def code(context: Context) -> Any:
        if not overridden:
            return await desk.agent.run("Hi.", toolsets=[toolset])
        with desk.agent.override(toolsets=[toolset]):
            return await desk.agent.run("Hi.")

    with pytest.raises(UserError, match="cannot be added at runtime with perdure"):
        journal.run(code)
    assert (desk.requests, journal.records) == ([], [])
