from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from mcp.server.mcpserver import Context as ServerContext
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.exceptions import UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import DynamicToolset, ToolsetTool

from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.effects.answer import Answer, Landed
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import ReceiptState
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import EffectAmbiguous, OperationFailed, RunParked
from perdure.testing.scripted import Call
from tests.conformance.pydantic_ai.agents import asking, caller, parked, states, told_twice
from tests.conformance.pydantic_ai.journal import MemoryJournal

READS = ToolAnnotations(read_only_hint=True)
REPEATS = ToolAnnotations(idempotent_hint=True)


class Shop:
    """An MCP server that counts its calls and keeps the keys that they came with."""

    def __init__(self, annotations: ToolAnnotations | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: list[Any] = []
        self.server = MCPServer("shop")
        self.server.tool(annotations=annotations)(self.pay)
        self.server.tool()(self.fail)
        self.server.tool()(self.hang)

    def toolset(self, **options: Any) -> MCPToolset[Any]:
        return MCPToolset(self.server, id="shop", **options)

    def pay(self, cents: int, ctx: ServerContext) -> str:
        self.calls["pay"] += 1
        meta = ctx.request_context.meta or {}
        self.keys.append((meta.get("perdure/operation_key"), meta.get("mine")))
        return f"paid {cents}"

    def fail(self) -> str:
        self.calls["fail"] += 1
        raise ValueError("broken")

    async def hang(self) -> str:
        self.calls["hang"] += 1
        await asyncio.Event().wait()
        return "never"


PAY = Call("pay", {"cents": 5})


def closed_port() -> str:
    """Return the URL of a server that there is not."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


# --- what a call is ------------------------------------------------------------------------------


def test_a_call_has_a_receipt_and_offers_its_key_beside_the_users_own_hook() -> None:
    shop = Shop()
    hooked: list[str] = []

    async def hook(ctx: RunContext[Any], call: Any, name: str, args: dict[str, Any]) -> Any:
        hooked.append(name)
        return await call(name, args, metadata={"mine": "kept"})

    journal = MemoryJournal()
    agent = caller(PAY, toolsets=[shop.toolset(process_tool_call=hook)])
    assert told_twice(journal, agent) == ["paid 5"]
    receipt = journal.receipt("shop.pay")
    assert receipt.state is ReceiptState.COMPLETED
    assert shop.keys == [(receipt.operation_key, "kept")]
    assert hooked == ["pay"]
    asyncio.run(agent.run("Go."))
    assert shop.keys[1:] == [(None, "kept")], "outside of a run the hook is called as before"


def test_a_replay_starts_no_server() -> None:
    journal = MemoryJournal()
    told = journal.run(asking(caller(PAY, toolsets=[Shop().toolset()])))
    away: MCPToolset[Any] = MCPToolset(closed_port(), id="shop")
    assert journal.run(asking(caller(PAY, toolsets=[away]))) == told
    assert journal.executed == 0


@pytest.mark.parametrize("behavior", ["retry", "failed", "error"])
def test_an_error_of_the_tool_is_told_and_leaves_open_what_was_done(behavior: Any) -> None:
    shop = Shop()
    journal = MemoryJournal()
    agent = caller("fail", toolsets=[shop.toolset(tool_error_behavior=behavior)])
    if behavior == "error":
        for _ in range(2):
            with pytest.raises(OperationFailed, match="ToolError"):
                journal.run(asking(agent))
    else:
        (told,) = told_twice(journal, agent)
        assert "Error executing tool fail" in told
    receipt = journal.receipt("shop.fail")
    assert receipt.state is ReceiptState.AMBIGUOUS
    assert "Error executing tool fail" in (receipt.problem or "")
    assert shop.calls["fail"] == 1


def test_a_server_that_does_not_answer_in_time_leaves_doubt() -> None:
    shop = Shop()
    journal = MemoryJournal()
    doubt = parked(journal, caller("hang", toolsets=[shop.toolset(read_timeout=0.5)]))
    assert doubt.target == "shop.hang"
    assert "timed out" in doubt.why.lower()
    parked(journal, caller("hang", toolsets=[shop.toolset(read_timeout=0.5)]))
    assert shop.calls["hang"] == 1


# --- what servers say of their tools -------------------------------------------------------------


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_hints_count_for_trusted_servers_only(trusted: bool, dynamic: bool) -> None:
    servers = {"shop"} if trusted else set[str]()
    for hint, support in [
        (None, SideEffectSupport.AT_LEAST_ONCE),
        (READS, None),
        (REPEATS, SideEffectSupport.IDEMPOTENT),
    ]:
        shop = Shop(hint)
        toolset: Any = shop.toolset()
        if dynamic:
            inner = toolset
            toolset = DynamicToolset(lambda ctx, inner=inner: inner, id="shop")
        journal = MemoryJournal()
        agent = caller(PAY, toolsets=[toolset], trusted_servers=servers)
        assert told_twice(journal, agent) == ["paid 5"]
        expected = support if trusted else SideEffectSupport.AT_LEAST_ONCE
        kept = [receipt.support for receipt in journal.receipts.values()]
        assert kept == ([] if expected is None else [expected])


def test_a_server_that_there_is_not_cannot_be_trusted() -> None:
    agent = caller(PAY, toolsets=[Shop().toolset()], trusted_servers={"shop", "shopp"})
    with pytest.raises(UserError, match=r"names 'shopp'; .* ids: 'shop'"):
        MemoryJournal().run(asking(agent))


def test_metadata_around_a_toolset_declares_single_tools() -> None:
    async def find(operation: OperationIdentity) -> Answer:
        return Landed("found")

    policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, target="till")
    journal = MemoryJournal()
    agent = Agent(
        caller(PAY, "hang").model,
        name="caller",
        toolsets=[Shop().toolset(read_timeout=0.5)],
        capabilities=[
            SetToolMetadata(tools=["pay"], perdure=ToolConfig(read_only=True)),
            SetToolMetadata(tools=["hang"], perdure=ToolConfig(effect=policy, lookup=find)),
            Durable(),
        ],
    )
    assert told_twice(journal, agent) == ["paid 5", "found"]
    assert states(journal) == [("till", "completed")]


# --- what was never sent -------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_leaves_no_receipt() -> None:
    shop = Shop()
    journal = MemoryJournal()
    journal.run(asking(caller(PAY, toolsets=[shop.toolset()])))
    journal.records = [r for r in journal.records if r.invocation.step_id != "mcp.request"][:2]
    journal.receipts.clear()
    away: MCPToolset[Any] = MCPToolset(closed_port(), id="shop")
    for _ in range(2):
        with pytest.raises(OperationFailed, match="failed to connect"):
            journal.run(asking(caller(PAY, toolsets=[away])))
    assert not journal.receipts
    assert shop.calls["pay"] == 1


def test_a_server_that_is_reached_by_each_run_for_itself_was_sent_nothing_before_that() -> None:
    journal = MemoryJournal()
    journal.run(asking(caller(PAY, toolsets=[Shop().toolset()])))
    journal.records = [r for r in journal.records if r.invocation.step_id != "mcp.request"][:2]
    journal.receipts.clear()
    headers: Any = lambda ctx: {"x-user": "ada"}  # noqa: E731 - a function of the run context
    away: MCPToolset[Any] = MCPToolset(closed_port(), id="shop", headers=headers)
    with pytest.raises(OperationFailed, match="failed to connect"):
        journal.run(asking(caller(PAY, toolsets=[away])))
    assert states(journal) == [("shop.pay", "failed")]


def test_a_server_that_cannot_be_reached_any_more_does_not_settle_what_it_may_have_done() -> None:
    shop = Shop(REPEATS)
    begun = asyncio.Event()

    async def hook(ctx: RunContext[Any], call: Any, name: str, args: dict[str, Any]) -> Any:
        await call(name, args)
        begun.set()
        await asyncio.Event().wait()

    journal = MemoryJournal()
    code = asking(caller(PAY, toolsets=[shop.toolset(process_tool_call=hook)]))

    async def killed(context: Any) -> None:
        run = asyncio.ensure_future(code(context))
        await begun.wait()
        run.cancel()
        await asyncio.wait([run])

    journal.run(killed)
    assert states(journal) == [("shop.pay", "ambiguous")]
    away: MCPToolset[Any] = MCPToolset(closed_port(), id="shop")
    for toolset, trusted in [(away, set[str]()), (away, {"shop"})]:
        agent = caller(PAY, toolsets=[toolset], trusted_servers=trusted)
        with pytest.raises(RunParked) as caught:
            journal.run(asking(agent))
        assert isinstance(caught.value.cause, EffectAmbiguous)
        assert states(journal) == [("shop.pay", "ambiguous")]


def test_a_hook_that_sends_nothing_has_refused_or_answered_by_itself() -> None:
    def hooked(act: Any) -> tuple[MemoryJournal, Agent[None, str], Shop]:
        async def hook(ctx: RunContext[Any], call: Any, name: str, args: dict[str, Any]) -> Any:
            return await act(lambda: call(name, args))

        shop = Shop()
        return MemoryJournal(), caller(PAY, toolsets=[shop.toolset(process_tool_call=hook)]), shop

    async def refuse(send: Any) -> Any:
        raise ModelRetry("too much")

    async def answer(send: Any) -> Any:
        return "from a cache"

    async def judge(send: Any) -> Any:
        await send()
        raise ModelRetry("pay more")

    async def forget(send: Any) -> Any:
        await send()
        raise KeyError("a bug")

    for act, state, calls in [
        (refuse, "failed", 0),
        (answer, "completed", 0),
        (judge, "completed", 1),
    ]:
        journal, agent, shop = hooked(act)
        assert told_twice(journal, agent) in (["too much"], ["from a cache"], ["pay more"])
        assert states(journal) == [("shop.pay", state)]
        assert shop.calls["pay"] == calls
    journal, agent, shop = hooked(forget)
    with pytest.raises(OperationFailed, match="KeyError"):
        journal.run(asking(agent))
    assert states(journal) == [("shop.pay", "completed")]


def test_a_toolset_that_sends_past_the_watcher_is_doubted() -> None:
    class Own(MCPToolset[Any]):
        async def call_tool(
            self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
        ) -> Any:
            await self.direct_call_tool(name, tool_args)
            raise KeyError("a bug")

    shop = Shop()
    journal = MemoryJournal()
    parked(journal, caller(PAY, toolsets=[Own(shop.server, id="shop")]))
    assert shop.calls["pay"] == 1
