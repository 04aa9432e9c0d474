from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, RunContext, ToolFailed
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset, ToolsetTool

from perdure import EffectPolicy, effect, operation
from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.context import Context
from perdure.effects.receipt import ReceiptState
from perdure.errors import EffectRejected, OperationFailed
from perdure.retry import RetryPolicy
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.agents import asking, caller, parked, states, told_twice
from tests.conformance.pydantic_ai.journal import MemoryJournal
from tests.harness import RUN, app_on, run

EAGER = ToolConfig(retry=RetryPolicy(attempts=5, initial_seconds=0))


class Order(BaseModel):
    cents: int


def failing(error: Exception, calls: list[str]) -> Any:
    """Return a tool that notes its call and raises."""

    def act() -> str:
        calls.append("act")
        raise error

    return Tool(act, metadata={"perdure": EAGER})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("answer", "heard"),
    [(ModelRetry("not yet"), "not yet"), (ToolFailed("no funds"), "no funds")],
    ids=["ModelRetry", "ToolFailed"],
)
def test_what_a_tool_says_to_the_model_is_a_refusal(
    answer: Exception, heard: str, dynamic: bool
) -> None:
    """T40: one execution each, and the model hears it."""
    calls: list[str] = []
    tool = failing(answer, calls)
    toolset = DynamicToolset(lambda ctx: FunctionToolset([tool]), id="made")
    tools: dict[str, Any] = {"toolsets": [toolset]} if dynamic else {"tools": [tool]}
    journal = MemoryJournal()
    assert told_twice(journal, caller("act", **tools)) == [heard]
    receipt = journal.receipt("act")
    assert (receipt.state, receipt.problem) == (ReceiptState.FAILED, heard)
    assert calls == ["act"]


@pytest.mark.parametrize("question", [ApprovalRequired({"why": "big"}), CallDeferred()], ids=repr)
def test_a_call_that_waits_for_somebody_has_sent_nothing(question: Exception) -> None:
    """T40: and when it is made at last, it is an effect of its own."""
    calls: list[str] = []

    def act(ctx: RunContext[None]) -> str:
        calls.append("act")
        if ctx.tool_call_approved:
            return "done"
        raise question

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("act")]), "Done."]),
        name="caller",
        tools=[Tool(act, metadata={"perdure": EAGER})],
        output_type=[str, DeferredToolRequests],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> str:
        result = await agent.run("Go.")
        assert isinstance(result.output, DeferredToolRequests)
        waiting = result.output
        results = waiting.build_results(approve_all=True)
        results.calls.update({call.tool_call_id: "done" for call in waiting.calls})
        again = await agent.run(
            message_history=result.all_messages(), deferred_tool_results=results
        )
        return str(again.output)

    journal = MemoryJournal()
    assert journal.run(code) == journal.run(code) == "Done."
    approved = ["completed"] if isinstance(question, ApprovalRequired) else []
    assert [state for _, state in states(journal)] == [*approved, "failed"]
    assert len(calls) == 1 + len(approved)


@pytest.mark.parametrize("dynamic", [False, True])
def test_arguments_that_are_refused_reach_no_target(dynamic: bool) -> None:
    """T40: a prompt to try again, no execution and no receipt."""
    calls: list[int] = []

    def act(order: Order) -> str:
        calls.append(order.cents)
        return "done"

    toolset = DynamicToolset(lambda ctx: FunctionToolset([act]), id="made")
    tools: dict[str, Any] = {"toolsets": [toolset]} if dynamic else {"tools": [act]}
    journal = MemoryJournal()
    (refusal,) = told_twice(journal, caller(Call("act", {"cents": "x"}), **tools))
    assert refusal[0]["type"] == "int_parsing"
    assert not calls
    assert not journal.receipts


def test_an_invalid_value_inside_a_tool_is_a_bug_of_which_nobody_knows_the_effect() -> None:
    """T40: a ValidationError of the tool's own, after which it is not called again."""
    calls: list[str] = []

    def act() -> str:
        calls.append("act")
        return str(Order.model_validate({"cents": "x"}))

    for _ in range(2):
        journal = MemoryJournal()
        parked(journal, caller("act", tools=[Tool(act, metadata={"perdure": EAGER})]))
        assert (journal.receipt("act").problem or "").startswith("ValidationError: 1 validation")
    assert calls == ["act"] * 2

    harmless = effect(rejected=ValidationError)(act)
    journal = MemoryJournal()
    (heard,) = told_twice(journal, caller("act", tools=[harmless]))
    assert heard[0]["type"] == "int_parsing"
    assert states(journal) == [("act", "failed")]


@pytest.mark.parametrize("kind", ["async", "thread", "policy", "dynamic", "itself"])
def test_a_timeout_is_no_answer(kind: str) -> None:
    """T24: the model is not asked to try again what may have been done."""
    over = threading.Event()

    async def asynchronous() -> str:
        return await asyncio.Event().wait() and "never"

    def in_thread() -> str:
        over.wait()
        return "late"

    def itself() -> str:
        raise TimeoutError("the till is slow")

    threads = {"thread": in_thread, "policy": in_thread, "itself": itself}
    function: Any = threads.get(kind, asynchronous)
    tool = Tool(function, name="act", timeout=0.2)
    if kind == "policy":
        config = ToolConfig(effect=EffectPolicy(timeout_seconds=0.2))
        tool = Tool(function, name="act", metadata={"perdure": config})
    toolset = DynamicToolset(lambda ctx: FunctionToolset([tool]), id="made")
    tools: dict[str, Any] = {"toolsets": [toolset]} if kind == "dynamic" else {"tools": [tool]}
    journal = MemoryJournal()
    try:
        assert "TimeoutError" in parked(journal, caller("act", **tools)).why
    finally:
        over.set()
    assert states(journal) == [("act", "ambiguous")]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_prompt_that_only_reads_like_a_timeout_is_an_answer(dynamic: bool) -> None:
    def act() -> str:
        raise ModelRetry("Timed out after 60 seconds.")

    tool = Tool(act, timeout=60)
    toolset = DynamicToolset(lambda ctx: FunctionToolset([tool]), id="made")
    tools: dict[str, Any] = {"toolsets": [toolset]} if dynamic else {"tools": [tool]}
    journal = MemoryJournal()
    told_twice(journal, caller("act", **tools))
    assert states(journal) == [("act", "failed")]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tool_whose_result_cannot_be_written_has_run(dynamic: bool) -> None:
    calls: list[str] = []

    def act() -> object:
        calls.append("act")
        return object()

    toolset = DynamicToolset(lambda ctx: FunctionToolset([act]), id="made")
    tools: dict[str, Any] = {"toolsets": [toolset]} if dynamic else {"tools": [act]}
    journal = MemoryJournal()
    for _ in range(2):
        with pytest.raises(OperationFailed, match="cannot be written to the journal"):
            journal.run(asking(caller("act", **tools)))
    assert states(journal) == [("act", "completed")]
    assert calls == ["act"]


def test_a_toolset_that_calls_its_tools_in_its_own_way_has_applied_what_it_returned() -> None:
    class Own(FunctionToolset[Any]):
        async def call_tool(
            self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
        ) -> Any:
            if tool_args["cents"] < 0:
                raise ValueError("negative")
            return "its own"

    def act(cents: int) -> str:
        raise AssertionError("never called")

    own = Own([act], id="own")
    journal = MemoryJournal()
    assert told_twice(journal, caller(Call("act", {"cents": 1}), toolsets=[own])) == ["its own"]
    assert states(journal) == [("act", "completed")]
    parked(MemoryJournal(), caller(Call("act", {"cents": -1}), toolsets=[own]))


class KeywordError(Exception):
    def __init__(self, *, code: int, hint: str = "") -> None:
        super().__init__(f"code {code}")
        self.code = code


def odd_errors() -> list[Exception]:
    """Return exceptions that no copy survives: keyword-only, grouped, with a cause."""
    caused = KeywordError(code=3)
    caused.__cause__ = OSError("below")
    return [
        KeywordError(code=7, hint="x"),
        ExceptionGroup("two", [KeywordError(code=1), ValueError("b")]),
        caused,
    ]


@pytest.mark.parametrize("declare", [operation(read_only=True), effect(rejected=Exception)])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_exception_is_the_same_failure_now_and_on_a_replay(declare: Any, index: int) -> None:
    """T45."""
    error = odd_errors()[index]

    def act() -> str:
        raise error

    journal = MemoryJournal()
    agent = caller("act", tools=[declare(act)])
    failures: list[OperationFailed] = []
    for _ in range(2):
        with pytest.raises(OperationFailed) as caught:
            journal.run(asking(agent))
        failures.append(caught.value)
    first, second = failures
    assert str(first) == str(second)
    assert (first.code, first.type_name, first.message) == (
        second.code,
        second.type_name,
        second.message,
    )
    assert first.message == str(error)
    assert first.code == type(error).__name__
    assert first.__cause__ is error
    assert journal.executed == 0


def test_a_refusal_tells_the_receipt_what_the_tool_said() -> None:
    def act() -> str:
        raise EffectRejected("the card is stolen")

    journal = MemoryJournal()
    with pytest.raises(OperationFailed):
        journal.run(asking(caller("act", tools=[act])))
    assert journal.receipt("act").problem == "the card is stolen"


class Deps:
    def __init__(self, size: int) -> None:
        self.text = "x" * size
        self.lock = threading.Lock()  # nothing that could be written


def journal_bytes(folder: Path, size: int) -> int:
    """Return how large a database is after a fan-out of 50 calls with dependencies of a size."""
    folder.mkdir()

    def act(ctx: RunContext[Deps], number: int) -> int:
        assert len(ctx.deps.text) == size
        return number

    calls = [Call("act", {"number": number}) for number in range(50)]
    agent = Agent(
        ScriptedModel([Reply(calls=calls), "Done."]),
        name="fan",
        deps_type=Deps,
        tools=[act],
        capabilities=[Durable()],
    )
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context) -> str:
        return (await agent.run("Go.", deps=Deps(size))).output

    async def main() -> str:
        async with app:
            return await (await app.start(work, run_id=RUN)).result()

    assert run(main()) == "Done."
    return sum(file.stat().st_size for file in folder.iterdir())


def test_a_journal_does_not_grow_with_the_dependencies(tmp_path: Path) -> None:
    """T44: 50 calls with 1 MB of dependencies that cannot be written."""
    small, large = journal_bytes(tmp_path / "small", 1), journal_bytes(tmp_path / "large", 10**6)
    assert abs(large - small) < 100_000
