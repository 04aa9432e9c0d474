from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from perdure import OperationIdentity, RetryPolicy, effect, operation
from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.context import Context, current
from perdure.effects.answer import Answer, Landed, NeverWill, SendAgain
from perdure.effects.receipt import ReceiptState
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import (
    EffectNotSent,
    EffectRejected,
    InvalidFunction,
    OperationFailed,
    RunNeedsAttention,
)
from perdure.receipts import ReceiptStore
from perdure.testing.scripted import Call
from tests.conformance.pydantic_ai.agents import asking, caller, parked, states, told_twice
from tests.conformance.pydantic_ai.journal import MemoryJournal
from tests.harness import RUN, app_on, run

IDEMPOTENT = EffectPolicy(support=SideEffectSupport.IDEMPOTENT)
AT_ONCE = RetryPolicy(attempts=3, initial_seconds=0)


class Till:
    """A target: each charge takes the next of what a test gave it."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.keys: list[str] = []

    def take(self, key: str = "") -> Any:
        self.keys.append(key)
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


# --- what nobody declared ------------------------------------------------------------------------


def test_a_tool_that_fails_without_an_answer_parks_the_run_and_is_not_called_again() -> None:
    till = Till(ConnectionError("the line is dead"))

    def charge(cents: int) -> str:
        return till.take()

    agent = caller(Call("charge", {"cents": 5}), tools=[charge])
    journal = MemoryJournal()
    doubt = parked(journal, agent)
    assert (doubt.target, doubt.why) == ("charge", "ConnectionError: the line is dead")
    receipt = journal.receipt("charge")
    assert receipt.state is ReceiptState.AMBIGUOUS
    assert receipt.problem == "ConnectionError: the line is dead"
    assert receipt.support is SideEffectSupport.AT_LEAST_ONCE
    assert journal.steps() == [("model.request", 1)]
    assert parked(journal, agent).operation_key == doubt.operation_key
    assert len(till.keys) == 1


@pytest.mark.parametrize("decision", [Landed({"charged": 5}), NeverWill(), SendAgain()])
def test_what_a_person_decides_is_what_the_model_is_told(tmp_path: Path, decision: Any) -> None:
    till = Till(ConnectionError("gone"), {"charged": 5})

    async def charge(cents: int) -> dict[str, int]:
        return till.take()

    ask = asking(caller(Call("charge", {"cents": 5}), tools=[charge]))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> list[Any]:
        return await ask(context)

    async def main() -> list[Any]:
        async with app, ReceiptStore(app.url) as store:
            handle = await app.start(work, run_id=RUN)
            with pytest.raises(RunNeedsAttention) as caught:
                await handle.result()
            assert caught.value.code == "EffectAmbiguous"
            (receipt,) = await store.list(ambiguous_only=True)
            await store.settle(
                receipt.operation_key, decision, by="ada", why="looked", expect_version=2
            )
            return await handle.result()

    assert run(main()) == [{"charged": 5}]
    assert len(till.keys) == (1 if isinstance(decision, Landed) else 2)


def test_a_call_beside_one_in_doubt_ends_and_is_recorded() -> None:
    till = Till(TimeoutError("late"))
    begun, failed, sent = asyncio.Event(), asyncio.Event(), list[str]()

    async def charge() -> str:
        await begun.wait()
        failed.set()
        return till.take()

    async def mail() -> str:
        begun.set()
        await failed.wait()
        for _ in range(20):  # the other one is parked by now, and waits for this
            await asyncio.sleep(0)
        sent.append("mail")
        return "sent"

    agent = caller("charge", "mail", tools=[charge, mail])
    journal = MemoryJournal()
    parked(journal, agent)
    assert states(journal) == [("charge", "ambiguous"), ("mail", "completed")]
    assert journal.steps() == [("model.request", 1), ("tool.call", 2)]
    parked(journal, agent)
    assert sent == ["mail"]


# --- what a function declares --------------------------------------------------------------------


def attached(how: str, kind: str, function: Any) -> dict[str, Any]:
    """Return what makes an agent have a function as its tool `charge`, one way or another."""
    toolset: FunctionToolset[Any] = FunctionToolset(id="till")
    match how:
        case "tools":
            return {"tools": [function]}
        case "Tool":
            return {"tools": [Tool(function, name="charge", max_retries=2)]}
        case "toolset.tool":
            toolset.tool_plain(function) if kind == "plain" else toolset.tool(function)
            return {"toolsets": [toolset]}
        case "prepared":

            async def renamed(ctx: RunContext[Any], tool_def: Any) -> Any:
                tool_def.name = "charge"
                return tool_def

            toolset.add_function(function, name="bill", prepare=renamed)
            return {"toolsets": [toolset]}
        case "wrapped":
            toolset.add_function(function, name="ge")
            filtered = toolset.filtered(lambda ctx, tool_def: True)
            prefixed = filtered.renamed({"rge": "ge"}).prefixed("cha")
            return {"toolsets": [prefixed.renamed({"charge": "cha_rge"})]}
        case _:
            return {
                "toolsets": [DynamicToolset(lambda ctx: FunctionToolset([function]), id="till")]
            }


@pytest.mark.parametrize("how", ["tools", "Tool", "toolset.tool", "prepared", "wrapped", "dynamic"])
@pytest.mark.parametrize("kind", ["plain", "ctx", "async"])
def test_a_declaration_below_a_tool_is_found_however_the_tool_is_attached(
    how: str, kind: str
) -> None:
    till = Till(ConnectionError("gone"), "charged")

    @effect(support="idempotent", target="bank")
    def plain(cents: int, operation: OperationIdentity) -> str:
        return till.take(operation.operation_key)

    @effect(support="idempotent", target="bank")
    def with_ctx(
        ctx: RunContext[None], cents: int, *, operation: OperationIdentity | None = None
    ) -> str:
        return till.take("" if operation is None else operation.operation_key)

    @effect(support="idempotent", target="bank")
    async def asynchronous(ctx: RunContext[None], operation: OperationIdentity, cents: int) -> str:
        return till.take(operation.operation_key)

    function: Any = {"plain": plain, "ctx": with_ctx, "async": asynchronous}[kind]
    function.__name__ = "charge"
    agent = caller(Call("charge", {"cents": 5}), **attached(how, kind, function))
    journal = MemoryJournal()
    assert told_twice(journal, agent) == ["charged"]
    receipt = journal.receipt("bank")
    assert receipt.support is SideEffectSupport.IDEMPOTENT
    assert till.keys == [receipt.operation_key] * 2, "sent again under its key"


def test_a_dynamic_toolset_is_not_made_for_a_replay() -> None:
    made: list[int] = []

    def charge() -> str:
        return "charged"

    def make(ctx: RunContext[None]) -> FunctionToolset[None]:
        made.append(ctx.run_step)
        return FunctionToolset([charge])

    journal = MemoryJournal()
    agent = caller("charge", toolsets=[DynamicToolset(make, id="till")])
    journal.run(asking(agent))
    assert made
    made.clear()
    journal.run(asking(agent))
    assert not made


def test_a_tool_below_an_agents_decorator_hides_its_identity_from_the_model() -> None:
    """A forged identity is refused like any argument that there is not."""
    seen: list[OperationIdentity] = []
    agent = caller(
        Call("charge", {"cents": 5, "operation": {"run_id": "mine"}}),
        Call("charge", {"cents": 6}),
    )

    @agent.tool
    @effect(target="bank")
    def charge(ctx: RunContext[None], cents: int, operation: OperationIdentity) -> str:
        seen.append(operation)
        return f"charged {cents}"

    journal = MemoryJournal()
    refusal, charged = told_twice(journal, agent)
    assert charged == "charged 6"
    assert refusal[0]["type"] == "extra_forbidden"
    assert refusal[0]["loc"] == ["operation"]
    assert [each.target for each in seen] == ["bank"]
    assert states(journal) == [("bank", "completed")]


def test_an_identity_that_a_model_writes_for_a_tool_that_takes_anything_is_not_used() -> None:
    seen: list[Any] = []

    @effect(target="bank")
    def charge(operation: OperationIdentity, **more: Any) -> str:
        seen.append((operation.target, more))
        return "charged"

    agent = caller(Call("charge", {"operation": "mine", "cents": 5}), tools=[charge])
    assert told_twice(MemoryJournal(), agent) == ["charged"]
    assert seen == [("bank", {"cents": 5})]


def test_exceptions_mean_what_the_declaration_says() -> None:
    class DeclinedError(Exception):
        pass

    till = Till(DeclinedError("no funds"), OSError("no route"), EffectRejected("closed"))

    @effect(rejected=DeclinedError, not_sent=OSError)
    def charge(cents: int) -> str:
        return till.take()

    for said, state in [
        ("DeclinedError: no funds", "failed"),
        ("OSError: no route", "failed"),
        ("perdure.errors.EffectRejected: closed", "failed"),
    ]:
        agent, journal = caller(Call("charge", {"cents": 5}), tools=[charge]), MemoryJournal()
        errors: list[str] = []
        for _ in range(2):
            with pytest.raises(OperationFailed) as caught:
                journal.run(asking(agent))
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
        assert errors[0].endswith(said)
        assert states(journal) == [("charge", state)]
    assert len(till.keys) == 3


def test_a_tool_is_tried_again_where_that_does_no_harm() -> None:
    till = Till(EffectNotSent("busy"), EffectNotSent("busy"), "sent")
    kept = Till(ConnectionError("gone"), "kept")
    lost = Till(ConnectionError("gone"), "never")

    @effect(retry=AT_ONCE)
    def send() -> str:
        return till.take()

    @effect(retry=AT_ONCE, support="idempotent")
    def keep(operation: OperationIdentity) -> str:
        return kept.take(operation.operation_key)

    @effect(retry=AT_ONCE)
    def lose() -> str:
        return lost.take()

    journal = MemoryJournal()
    agent = caller("send", "keep", tools=[send, keep])
    assert told_twice(journal, agent) == ["sent", "kept"]
    assert [len(till.keys), len(kept.keys)] == [3, 2]
    assert len({*kept.keys}) == 1
    parked(MemoryJournal(), caller("lose", tools=[lose]))
    assert len(lost.keys) == 1


def test_what_a_lookup_finds_is_what_the_tool_returned() -> None:
    till = Till(ConnectionError("gone"))
    asked: list[OperationIdentity] = []

    @effect(support="outcome_queryable", target="bank")
    def charge(operation: OperationIdentity) -> dict[str, str]:
        return till.take(operation.operation_key)

    @charge.lookup
    async def find(operation: OperationIdentity) -> Answer:
        asked.append(operation)
        return Landed({"kind": "tool-return", "receipt": "r-1"})

    journal = MemoryJournal()
    (told,) = told_twice(journal, caller("charge", tools=[charge]))
    assert told == {"kind": "tool-return", "receipt": "r-1"}
    assert [each.operation_key for each in asked] == till.keys


def test_a_model_is_told_that_nobody_knows_and_goes_on() -> None:
    till = Till(ConnectionError("gone"))

    @effect(on_ambiguous="tell", target="bank")
    def charge() -> str:
        return till.take()

    journal = MemoryJournal()
    (told,) = told_twice(journal, caller("charge", tools=[charge]))
    receipt = journal.receipt("bank")
    assert receipt.state is ReceiptState.AMBIGUOUS
    assert told["outcome"] == "unknown"
    assert told["operation_key"] == receipt.operation_key
    assert told["why"] == "ConnectionError: gone"
    assert "do not repeat" in told["advice"]
    assert len(till.keys) == 1


def test_a_repeat_that_was_asked_for_is_made_and_marked() -> None:
    till = Till(ConnectionError("gone"), "charged")

    @effect(on_ambiguous="retry")
    def charge() -> str:
        return till.take()

    journal = MemoryJournal()
    assert told_twice(journal, caller("charge", tools=[charge])) == ["charged"]
    assert journal.receipt("charge").residual_duplicate_risk


# --- what only reads, and what metadata says -----------------------------------------------------


def test_a_tool_that_only_reads_has_no_receipt_and_may_run_again() -> None:
    calls: list[str] = []

    @operation(read_only=True)
    def look() -> str:
        calls.append("look")
        return "seen"

    def count() -> int:
        calls.append("count")
        return 3

    tools = [look, Tool(count, metadata={"perdure": ToolConfig(read_only=True)})]
    journal = MemoryJournal()
    assert told_twice(journal, caller("look", "count", tools=tools)) == ["seen", 3]
    assert not journal.receipts
    journal.records = [record for record in journal.records if "model" in record.invocation.step_id]
    journal.run(asking(caller("look", "count", tools=tools)))
    # Both of a turn run in threads, in no order.
    assert sorted(calls) == ["count", "count", "look", "look"]


def test_a_declared_time_limit_ends_a_tool_that_only_reads_and_one_that_acts() -> None:
    @operation(read_only=True, timeout_seconds=0.01)
    async def look() -> str:
        return await asyncio.Event().wait() and "never"

    @effect(timeout_seconds=0.2)
    async def act() -> str:
        return await asyncio.Event().wait() and "never"

    with pytest.raises(OperationFailed) as caught:
        MemoryJournal().run(asking(caller("look", tools=[look])))
    assert caught.value.code == "TimeoutError"
    parked(MemoryJournal(), caller("act", tools=[act]))


def test_metadata_declares_the_effect_of_a_function_of_others() -> None:
    till = Till(ConnectionError("gone"))

    def charge() -> str:
        return till.take()

    async def find(operation: OperationIdentity) -> Answer:
        return Landed("charged")

    policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, target="bank")
    config = ToolConfig(effect=policy, lookup=find)
    tool = Tool(charge, metadata={"perdure": config})
    journal = MemoryJournal()
    assert told_twice(journal, caller("charge", tools=[tool])) == ["charged"]
    assert states(journal) == [("bank", "completed")]


def test_what_is_declared_twice_is_refused() -> None:
    @effect()
    def charge() -> str:
        raise AssertionError("never called")

    async def find(operation: OperationIdentity) -> Answer:
        return NeverWill()

    for config, complaint in [
        (ToolConfig(read_only=True), "declared twice"),
        (ToolConfig(effect=IDEMPOTENT), "declared twice"),
        (False, "leaves it out of the journal"),
    ]:
        tool = Tool(charge, metadata={"perdure": config})
        with pytest.raises(UserError, match=complaint):
            MemoryJournal().run(asking(caller("charge", tools=[tool])))
    with pytest.raises(UserError, match="read_only has no effect"):
        ToolConfig(read_only=True, effect=IDEMPOTENT)
    with pytest.raises(UserError, match="OUTCOME_QUERYABLE"):
        ToolConfig(lookup=find)
    policy = EffectPolicy(on_ambiguous=OnAmbiguous.TELL)
    assert ToolConfig(effect=policy, lookup=find).lookup is find


def yielded() -> Any:
    """Yield, so that a call of it does nothing."""
    raise AssertionError("never called")
    yield ""


async def yielded_later() -> Any:
    """Yield, so that a call of it does nothing."""
    raise AssertionError("never called")
    yield ""


@effect(support="outcome_queryable")
def unasked() -> str:
    """Do what nobody can ask about."""
    raise AssertionError("never called")


@pytest.mark.parametrize("how", ["tools", "dynamic"])
@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (yielded, "it is a generator function"),
        (yielded_later, "it is a generator function"),
        (unasked, r"@unasked\.lookup"),
    ],
)
def test_a_tool_that_cannot_be_performed_is_refused_before_it_is_called(
    how: str, function: Any, complaint: str
) -> None:
    agent = caller(function.__name__, **attached(how, "plain", function))
    journal = MemoryJournal()
    with pytest.raises(
        InvalidFunction, match=rf"{function.__name__} \(.*\.py:\d+\): .*{complaint}"
    ):
        journal.run(asking(agent))
    assert states(journal) == []


def test_a_target_that_can_be_asked_has_a_lookup_in_its_metadata() -> None:
    policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, target="bank")
    with pytest.raises(UserError, match="lookup=find"):
        ToolConfig(effect=policy)


# --- what is no effect ---------------------------------------------------------------------------


def test_requests_validation_and_agents_in_tools_have_no_receipts() -> None:
    async def positive(ctx: RunContext[None], cents: int) -> None:
        if cents < 0:
            raise ValueError("negative")

    def charge(cents: int) -> str:
        return f"charged {cents}"

    helper = caller(Call("charge", {"cents": 1}), tools=[Tool(charge, args_validator=positive)])

    @operation(read_only=True)
    async def ask() -> str:
        context = current()
        assert context is not None
        return (await helper.run("Help.", timeout=30)).output

    journal = MemoryJournal()
    agent = Agent(caller("ask").model, name="boss", tools=[ask], capabilities=[Durable()])
    assert told_twice(journal, agent) == ["Done."]
    assert states(journal) == [("charge", "completed")]
    steps = [step for step, _ in journal.steps()]
    assert "tool.call.1.tool.validate" in steps
