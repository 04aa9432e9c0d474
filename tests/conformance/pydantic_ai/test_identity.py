from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, DeferredToolResults, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls, durable_operation
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from perdure.adapters.pydantic_ai import Durable
from perdure.context import Context
from perdure.functions import operation
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.journal import MemoryJournal


def replayed(journal: MemoryJournal, code: Any) -> Any:
    """Execute code twice and return what both executions returned."""
    first = journal.run(code)
    assert journal.run(code) == first
    assert journal.executed == 0
    return first


def test_an_id_that_a_model_uses_again_and_a_toolset_made_anew_are_another_call() -> None:
    """T10."""
    sent: Counter[str] = Counter()

    def sender(ctx: RunContext[None]) -> FunctionToolset[None]:
        def send(text: str) -> str:
            sent[text] += 1
            return f"sent {ctx.run_step}"

        return FunctionToolset([send])

    again = Reply(calls=[Call("send", {"text": "hello"}, id="call")])
    agent = Agent(
        ScriptedModel([again, again, "Sent."]),
        name="mail",
        toolsets=[DynamicToolset(sender, id="sender")],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> str:
        return (await agent.run("Twice, please.")).output

    journal = MemoryJournal()
    assert replayed(journal, code) == "Sent."
    assert sent == {"hello": 2}
    calls = [step for step in journal.steps() if step[0] == "tool.call"]
    assert calls == [("tool.call", 1), ("tool.call", 2)]
    (head, tail) = (journal.record("tool.call", n).invocation.input_json for n in (1, 2))
    assert head == tail, "equal digests, and yet two operations"


def test_calls_that_reach_no_tool_use_up_their_numbers() -> None:
    def add(a: int) -> int:
        return a

    agent = Agent(
        ScriptedModel(
            [
                Reply(calls=[Call("add", {"a": "x"}), Call("nowhere"), Call("add", {"a": 1})]),
                Reply(calls=[Call("add", {"a": 2})]),
                "Done.",
            ]
        ),
        name="sum",
        tools=[add],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> str:
        return (await agent.run("Add.")).output

    journal = MemoryJournal()
    replayed(journal, code)
    assert [n for step, n in journal.steps() if step == "tool.call"] == [3, 4]


def test_listing_an_mcp_server_is_journalled_whether_the_process_is_warm_or_cold() -> None:
    """T05."""
    server = MCPServer("clock")
    agent = Agent(
        ScriptedModel(["Hello."]),
        name="warm",
        toolsets=[MCPToolset(server, id="clock", include_instructions=True)],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> str:
        return (await agent.run("Hi.")).output

    cold, warm = MemoryJournal("run-a"), MemoryJournal("run-b")

    async def both() -> None:
        await cold.execute(code)
        await warm.execute(code)

    asyncio.run(both())
    listings = [("mcp.instructions.clock", 1), ("mcp.list.clock", 1)]
    assert cold.steps() == warm.steps() == [*listings, ("model.request", 1)]
    replayed(warm, code)


def test_runs_and_the_agents_in_them_have_identities_of_their_own() -> None:
    made: list[str] = []

    @operation(read_only=True)
    async def helped(ctx: RunContext[str]) -> str:
        made.append(ctx.deps)
        return (await helper.run("Go.", run_id="mine" if ctx.deps == "b" else None)).output

    helper = Agent(ScriptedModel(["Yes."]), name="helper", capabilities=[Durable()])
    agent = Agent(
        ScriptedModel([Reply(calls=[Call("helped"), Call("helped")]), "Done."]),
        name="boss",
        deps_type=str,
        tools=[helped],
        capabilities=[Durable()],
    )

    async def code(context: Context) -> list[tuple[str, str]]:
        results = await asyncio.gather(*(agent.run("Go.", deps=deps) for deps in "ab"))
        return [(result.run_id, result.conversation_id) for result in results]

    one, other = MemoryJournal("run-1"), MemoryJournal("run-2")
    (first, _), (second, _) = ids = replayed(one, code)
    assert (first, second) == ("run-1/agent.1", "run-1/agent.2")
    assert len({conversation for _, conversation in ids}) == 2
    assert set(one.steps()) >= {
        ("tool.call.2.model.request", 1),
        ("agent.2.tool.call.2.model.request", 1),
    }
    replayed(other, code)
    assert one.steps() == other.steps()
    assert made.count("a") == made.count("b") == 4, "nothing crosses from one run to another"


def test_a_call_made_again_after_its_approval_is_an_operation_of_its_own() -> None:
    paid: list[bool] = []

    def approve(ctx: RunContext[None], requests: Any) -> DeferredToolResults:
        return DeferredToolResults(approvals={c.tool_call_id: True for c in requests.approvals})

    def pay(ctx: RunContext[None]) -> str:
        paid.append(ctx.tool_call_approved)
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "paid"

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("pay")]), "Done."]),
        name="bank",
        tools=[pay],
        capabilities=[HandleDeferredToolCalls(approve), Durable()],
    )

    async def code(context: Context) -> str:
        return (await agent.run("Pay.")).output

    journal = MemoryJournal()
    replayed(journal, code)
    assert paid == [False, True]
    assert set(journal.steps()) >= {("tool.call", 1), ("tool.call.repeat.2", 1)}


def test_validation_and_what_capabilities_do_are_operations() -> None:
    noted: list[str] = []

    class Audit(AbstractCapability[Any]):
        id = "audit"

        @durable_operation(name="note")
        async def note(self, ctx: RunContext[Any], text: str) -> str:
            noted.append(text)
            return text

        async def before_run(self, ctx: RunContext[Any]) -> None:
            await self.note(ctx, "begin")

        async def before_tool_execute(
            self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: dict[str, Any]
        ) -> dict[str, Any]:
            await self.note(ctx, call.tool_name)
            return args

    async def positive(ctx: RunContext[None], order: int) -> None:
        noted.append("validated")

    def find(order: int) -> int:
        return order

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("find", {"order": 1})]), "Done."]),
        name="audited",
        tools=[Tool(find, args_validator=positive)],
        capabilities=[Audit(), Durable()],
    )

    async def code(context: Context) -> str:
        return (await agent.run("Find.")).output

    journal = MemoryJournal()
    replayed(journal, code)
    assert noted == ["begin", "validated", "find"]
    assert journal.steps() == [
        ("capability.audit.note", 0),
        ("capability.audit.note.call.1", 1),
        ("model.request", 1),
        ("model.request", 2),
        ("tool.call", 1),
        ("tool.validate", 1),
    ]


def test_handler_ids_name_agent_toolset_and_tool() -> None:
    def find(order: int) -> int:
        return order

    journal = MemoryJournal()
    agent = Agent(
        ScriptedModel([Reply(calls=[Call("find", {"order": 1})]), "Done."]),
        name="support desk",
        toolsets=[FunctionToolset([find], id="orders/eu")],
        capabilities=[Durable()],
    )
    journal.run(lambda context: agent.run("Find."))
    handlers = {record.invocation.handler_id for record in journal.records}
    assert handlers == {
        "support_desk__model.request-7240ad3c",
        "support_desk__function_toolset__orders.eu.call_tool.find-bd0be993",
    }


def test_a_deadline_counts_from_the_first_execution() -> None:
    deadlines: list[object] = []

    def look(ctx: RunContext[None]) -> str:
        return "looked"

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("look")]), "Done."]),
        name="slow",
        tools=[look],
        capabilities=[Durable()],
    )

    @agent.instructions
    def note(ctx: RunContext[None]) -> str:
        deadlines.append(ctx.deadline)
        return ""

    journal = MemoryJournal()

    async def code(context: Context) -> str:
        return (await agent.run("Look.", timeout=30)).output

    replayed(journal, code)
    assert len(set(deadlines)) == 1
    assert ("agent.begin", 1) in journal.steps()
