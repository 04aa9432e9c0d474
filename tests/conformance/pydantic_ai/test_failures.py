from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelServerError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.usage import UsageLimits

from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.context import Context
from perdure.errors import OperationFailed, RunParked
from perdure.functions import operation
from perdure.journal.record import Failure
from perdure.retry import RetryPolicy
from perdure.testing.scripted import Call, Reply, ScriptedModel, Trouble
from tests.conformance.pydantic_ai.agents import states
from tests.conformance.pydantic_ai.journal import MemoryJournal

AT_ONCE = RetryPolicy(initial_seconds=0)
OVERLOADED = ModelHTTPError.for_category(
    ModelServerError, status_code=503, model_name="m", headers={"Retry-After": "0"}, hint="Wait."
)


class AppError(Exception):
    pass


class AppModelError(ModelAPIError):
    pass


def troubled(*errors: Exception) -> Agent[None, str]:
    reply = Reply(text="Fine.", troubles=[Trouble(error) for error in errors])
    return Agent(ScriptedModel([reply]), name="troubled", capabilities=[Durable(retry=AT_ONCE)])


def raised_twice(journal: MemoryJournal, code: Any) -> list[Exception]:
    errors: list[Exception] = []
    for _ in range(2):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is tested
            journal.run(code)
        errors.append(caught.value)
    assert journal.executed == 0
    return errors


@pytest.mark.parametrize(
    "error",
    [
        ModelHTTPError(400, "m", {"error": "bad"}, headers={"X-Id": "1"}, suggested_model_id="n"),
        OVERLOADED,
        ModelRateLimitError("m", "slow down", retry_after=0.001, provider_error_code="rate"),
        AppModelError("m", "ours"),
        UnexpectedModelBehavior("odd", '{"a": 1}'),
        UsageLimitExceeded("enough"),
        UserError("misused"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_agents_react_to_come_back_as_themselves(error: Exception) -> None:
    agent = troubled(*[error] * 3)
    for again in raised_twice(MemoryJournal(), lambda context: agent.run("Hi.")):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_the_group_of_a_fallback_comes_back_with_what_is_in_it() -> None:
    models = [troubled(error).model for error in (OVERLOADED, ModelAPIError("m", "gone"))]
    agent = Agent(FallbackModel(*models), name="two", capabilities=[Durable()])
    for again in raised_twice(MemoryJournal(), lambda context: agent.run("Hi.")):
        assert isinstance(again, FallbackExceptionGroup)
        assert [type(inner) for inner in again.exceptions] == [type(OVERLOADED), ModelAPIError]


def test_a_fallback_to_another_model_is_taken_again_on_a_replay() -> None:
    second = ScriptedModel(["From the second."], name="second")
    agent = Agent(
        troubled(*[OVERLOADED] * 9).model,
        name="fallback",
        capabilities=[ModelFallback(second), Durable(models={"second": second}, retry=None)],
    )

    async def code(context: Context) -> tuple[str, bytes]:
        result = await agent.run("Hi.")
        return result.output, result.all_messages_json()

    journal = MemoryJournal()
    first = journal.run(code)
    assert first[0] == "From the second."
    assert journal.run(code) == first
    assert journal.executed == 0
    assert journal.steps() == [("model.request", 1), ("model.request", 2)]


def test_any_other_error_is_the_same_operation_failed_now_and_later() -> None:
    @operation(read_only=True)
    def explode() -> str:
        raise AppError("boom")

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("explode")])]),
        name="bomb",
        tools=[explode],
        capabilities=[Durable()],
    )
    journal = MemoryJournal()
    first, second = raised_twice(journal, lambda context: agent.run("Hi."))
    assert isinstance(first, OperationFailed)
    assert str(first) == str(second)
    assert isinstance(first.__cause__, AppError)
    outcome = journal.record("tool.call").outcome
    assert isinstance(outcome, Failure)
    assert (outcome.error_name, outcome.message) == ("AppError", "boom")


def test_what_a_tool_says_to_the_model_is_a_result() -> None:
    tries: list[int] = []

    def fussy() -> str:
        tries.append(len(tries))
        raise ModelRetry("Ask nicely.")

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("fussy")]), "I gave up."]),
        name="fussy",
        tools=[
            Tool(fussy, metadata={"perdure": ToolConfig(retry=AT_ONCE)}),
        ],
        capabilities=[Durable()],
    )
    journal = MemoryJournal()
    outputs = {journal.run(lambda context: agent.run("Hi.")).output for _ in range(2)}
    assert outputs == {"I gave up."}
    assert tries == [0]


def test_a_model_is_asked_again_after_passing_trouble_only() -> None:
    journal = MemoryJournal()
    result = journal.run(lambda context: troubled(OVERLOADED, OVERLOADED).run("Hi."))
    assert result.output == "Fine."
    assert journal.record("model.request").attempt == 3
    assert ("model.request.1.retry", 2) in journal.steps()

    refused = troubled(ModelHTTPError(400, "m"), ModelHTTPError(400, "m"))
    journal = MemoryJournal()
    raised_twice(journal, lambda context: refused.run("Hi."))
    assert journal.steps() == [("model.request", 1)]


def test_a_crash_between_tries_of_a_tool_goes_on_with_the_next_try() -> None:
    tries: list[int] = []

    def shaky() -> str:
        tries.append(len(tries) + 1)
        if len(tries) < 3:
            raise ConnectionError("gone")
        return "up"

    retry = RetryPolicy(attempts=4, initial_seconds=0, retry_on=OSError)
    config = ToolConfig(retry=retry, read_only=True)
    agent = Agent(
        ScriptedModel([Reply(calls=[Call("shaky")]), "Up."]),
        name="shaky",
        tools=[Tool(shaky, metadata={"perdure": config})],
        capabilities=[Durable()],
    )
    whole = MemoryJournal()
    whole.run(lambda context: agent.run("Hi."))
    assert whole.record("tool.call").attempt == 3
    kept = [
        whole.record("model.request", 1),
        *(whole.record("tool.call.1.retry", n) for n in (1, 2)),
    ]
    journal = MemoryJournal()
    journal.records = kept
    tries[:] = [1, 2]
    assert journal.run(lambda context: agent.run("Hi.")).output == "Up."
    assert tries == [1, 2, 3]
    assert journal.record("tool.call").attempt == 3
    assert journal.steps() == whole.steps()


@pytest.mark.parametrize("made_of_it", [asyncio.CancelledError, ValueError])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_cancelled_call_leaves_no_outcome(made_of_it: Any, read_only: bool) -> None:
    started = asyncio.Event()

    @operation(read_only=read_only)
    async def endless() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise made_of_it from None
        return "never"

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("endless")])]),
        name="endless",
        tools=[endless],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> None:
        run = asyncio.create_task(agent.run("Hi."))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    journal = MemoryJournal()
    journal.run(code)
    assert journal.steps() == [("model.request", 1)]
    assert states(journal) == ([] if read_only else [("endless", "ambiguous")])


def test_a_mismatch_in_one_of_parallel_calls_parks_the_run() -> None:
    def look(order: int) -> int:
        return order

    def agent(second: int) -> Agent[None, str]:
        calls = [Call("look", {"order": order}) for order in (1, second, 3)]
        script = [Reply(calls=calls), "Done."]
        return Agent(ScriptedModel(script), name="look", tools=[look], capabilities=[Durable()])

    journal = MemoryJournal()
    journal.run(lambda context: agent(2).run("Hi."))
    journal.records = [r for r in journal.records if r.invocation.kind == "tool_call"]
    with pytest.raises(RunParked, match=r"run-1/tool\.call/2"):
        journal.run(lambda context: agent(4).run("Hi."))


def test_what_json_cannot_carry_is_refused_with_its_place() -> None:
    def measure(x: float) -> object:
        return object()

    def agent(x: float) -> Agent[None, str]:
        script = [Reply(calls=[Call("measure", {"x": x})])]
        return Agent(ScriptedModel(script), name="odd", tools=[measure], capabilities=[Durable()])

    for error in raised_twice(MemoryJournal(), lambda context: agent(float("nan")).run("Hi.")):
        assert "arguments.x is nan" in str(error)
    for error in raised_twice(MemoryJournal(), lambda context: agent(1.0).run("Hi.")):
        assert "the result of odd__function_toolset__agent.call_tool.measure" in str(error)


def test_a_limit_on_usage_counts_agents_in_tools_on_a_replay_too() -> None:
    helper = Agent(ScriptedModel(["Yes."]), name="helper", capabilities=[Durable()])
    agent = Agent(
        ScriptedModel([Reply(calls=[Call("ask"), Call("ask")]), "Done."]),
        name="boss",
        capabilities=[Durable()],
    )

    @agent.tool
    @operation(read_only=True)
    async def ask(ctx: RunContext[None]) -> str:
        return (await helper.run("Hm?", usage=ctx.usage)).output

    async def code(context: Context) -> None:
        await agent.run("Hi.", usage_limits=UsageLimits(request_limit=3))

    first, second = raised_twice(MemoryJournal(), code)
    assert isinstance(first, UsageLimitExceeded)
    assert str(first) == str(second)
