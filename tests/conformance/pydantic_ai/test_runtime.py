"""Agents on a runtime instead of in a run: the same operations, performed by handlers elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Callable, Sequence
from datetime import date, timedelta
from typing import Any

import pytest
from mcp.server.mcpserver import Context as McpContext
from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, RunContext
from pydantic_ai.capabilities import ModelFallback, RequestInput
from pydantic_ai.exceptions import ApprovalRequired, ModelHTTPError, ModelServerError, UserError
from pydantic_ai.external_events import ExternalEventWaiter, external_event_scope
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import AgentStreamEvent, ModelMessage
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from perdure import OperationIdentity, effect
from perdure.adapters.pydantic_ai import Budget, Durable, agent_handlers, durable_on
from perdure.adapters.pydantic_ai.conversation import Conversation
from perdure.asked_effect import identity_of
from perdure.declaration import Reported
from perdure.effects.support import EffectPolicy
from perdure.errors import BudgetExceeded, OperationFailed
from perdure.journal import Handlers, Invocation
from perdure.journal.failures import failure_of
from perdure.journal.record import Record, encode_record, parse_record
from perdure.retry import RetryPolicy
from perdure.testing.scripted import Call, Reply, ScriptedModel, Trouble
from tests.conformance.pydantic_ai.journal import MemoryJournal

AT_ONCE = RetryPolicy(initial_seconds=0)
OVERLOADED = ModelHTTPError.for_category(
    ModelServerError, status_code=503, model_name="m", headers={"Retry-After": "0"}, hint="Wait."
)
SAID = "All is well, and there is nothing new."


class Elsewhere:
    """A runtime that has handlers perform what it has no record of, and keeps records as bytes."""

    def __init__(self, agent: Agent[Any, Any], **options: Any) -> None:
        self.agent = agent
        self.handlers = Handlers()
        agent_handlers(agent, self.handlers, **options)
        self.records: dict[str, bytes] = {}
        self.performed: list[Invocation] = []

    async def execute(self, invocation: Invocation) -> Record:
        key = invocation.stable_key
        if key not in self.records:
            self.performed.append(invocation)
            try:
                # The code of the agent is in another process.
                worker = self.handlers.lookup(invocation.kind, invocation.handler_id)
                told = await asyncio.create_task(worker(invocation))
            except Exception as error:  # noqa: BLE001 - as workers do
                told = failure_of(error)
            outcome = told.outcome if isinstance(told, Reported) else told
            self.records[key] = encode_record(Record(invocation, outcome))
        return parse_record(self.records[key])

    def run(self, *args: Any, **options: Any) -> Any:
        async def main() -> Any:
            with durable_on(self, run_id="run-1", now=lambda: 1_700_000_000.0):
                return await self.agent.run(*args, **options)

        return asyncio.run(main())

    def asked(self) -> list[str]:
        return [invocation.stable_key for invocation in self.performed]


def agent_of(*replies: Reply | str, **options: Any) -> Agent[Any, Any]:
    capability = Durable[Any](**{"retry": AT_ONCE, **options})
    return Agent(ScriptedModel([*replies]), name="support", capabilities=[capability])


def said(messages: Sequence[ModelMessage]) -> Any:
    """Return what of messages a provider is sent."""
    return json.loads(Conversation().document(b"{", messages).data)["messages"]


def test_the_same_is_asked_for_as_inside_a_run_and_a_replay_asks_for_nothing() -> None:
    calls = [Call("look_up", {"order": order}) for order in ("7", "8")]
    tried: list[tuple[str, int]] = []
    sent: list[Any] = []

    def agent() -> Agent[Any, Any]:
        script = [Reply(calls=calls), Reply(calls=[Call("look_up", {"order": "9"})]), "Done."]
        model = ScriptedModel(script, on_request=lambda asked: sent.append(said(asked.messages)))
        made = Agent(model, name="support", instructions="Be kind.", capabilities=[Durable[Any]()])

        @made.tool
        def look_up(ctx: RunContext[Any], order: str) -> dict[str, str]:
            tried.append((order, ctx.retry))
            if order == "8":
                raise ModelRetry("try another")
            return {"order": order}

        return made

    journal = MemoryJournal()
    inside = agent()
    journal.run(lambda _: inside.run("What of my orders?"))
    tried_inside, tried[:] = sorted(tried), []
    sent_inside, sent[:] = [*sent], []
    elsewhere = Elsewhere(agent())
    result = elsewhere.run("What of my orders?")
    assert result.output == "Done."
    assert journal.inputs() == {
        f"{each.stable_key} {each.handler_id}": each.input_json for each in elsewhere.performed
    }
    assert sorted(tried) == tried_inside == [("7", 0), ("8", 0), ("9", 1)]
    assert sent == sent_inside
    assert [each[0]["instructions"] for each in sent] == ["Be kind."] * 3
    again = elsewhere.run("What of my orders?")
    assert again.all_messages() == result.all_messages()
    assert (len(tried), len(elsewhere.performed)) == (3, 6)


def test_a_model_is_asked_again_by_an_operation_of_its_own() -> None:
    elsewhere = Elsewhere(agent_of(Reply(text="Fine.", troubles=[Trouble(OVERLOADED)] * 2)))
    assert elsewhere.run("Well?").output == "Fine."
    assert elsewhere.asked() == [
        "run-1/model.request/1",
        "run-1/model.request.retry.1/1",
        "run-1/model.request.retry.2/1",
    ]


def test_errors_that_agents_react_to_come_back_as_themselves() -> None:
    troubled = Reply(text="Never.", troubles=[Trouble(OVERLOADED)])
    with pytest.raises(ModelHTTPError) as raised:
        Elsewhere(agent_of(troubled, retry=None)).run("Well?")
    assert (raised.value.status_code, str(raised.value)) == (503, str(OVERLOADED))

    second = ScriptedModel(["From another."], name="second")
    durable = Durable[None](retry=None, models={"second": second})
    fallback = ModelFallback[None](second)
    agent = Agent(ScriptedModel([troubled]), name="support", capabilities=[fallback, durable])
    elsewhere = Elsewhere(agent)
    assert elsewhere.run("Well?").output == "From another."
    assert [each.handler_id for each in elsewhere.performed] == [
        "support__model.request",
        "support__model.request.second",
    ]


def test_what_a_tool_raises_fails_the_run_by_name_alone() -> None:
    agent = agent_of(Reply(calls=[Call("pay")]), "Never.")

    @agent.tool_plain
    def pay() -> None:
        raise ConnectionResetError("a secret of the bank")

    with pytest.raises(OperationFailed, match="ConnectionResetError") as raised:
        Elsewhere(agent).run("Pay.")
    assert "secret" not in str(raised.value)


def test_a_tool_is_not_tried_again_under_another_identity() -> None:
    agent = agent_of(Reply(calls=[Call("pay")]), "Never.")

    @agent.tool_plain
    @effect(support="idempotent", target="bank", retry=AT_ONCE)
    def pay() -> None:
        raise OVERLOADED

    elsewhere = Elsewhere(agent)
    with pytest.raises(ModelHTTPError):
        elsewhere.run("Pay.")
    assert elsewhere.asked() == ["run-1/model.request/1", "run-1/tool.call/1"]


def test_a_tool_has_its_identity_and_dependencies_where_it_is_performed() -> None:
    agent = agent_of(Reply(calls=[Call("refund", {"paid": "2026-11-30"})]), "Refunded.")
    seen: list[Any] = []

    @agent.tool
    @effect(support="idempotent", target="bank")
    def refund(ctx: RunContext[str], paid: date, operation: OperationIdentity) -> str:
        seen.append((ctx.deps, ctx.tool_call_id, paid, operation))
        return "ok"

    elsewhere = Elsewhere(agent, deps=lambda invocation: f"for {invocation.step_id}")
    elsewhere.run("Refund.", deps=object())
    call = elsewhere.performed[1]
    identity = identity_of(call, EffectPolicy(target="bank"))
    assert seen == [("for tool.call", "call-1-1", date(2026, 11, 30), identity)]


@pytest.mark.parametrize("given", [{"cents": "five"}, {}], ids=["of another type", "none"])
def test_arguments_that_do_not_fit_are_told_to_the_model(given: dict[str, Any]) -> None:
    agent = agent_of(Reply(calls=[Call("refund", given)]), "Sorry.")

    @agent.tool_plain
    def refund(cents: int) -> None:
        raise AssertionError(cents)

    elsewhere = Elsewhere(agent)
    assert elsewhere.run("Refund.").output == "Sorry."
    assert elsewhere.asked() == ["run-1/model.request/1", "run-1/model.request/2"]


def test_a_handler_of_events_is_called_where_they_are_performed() -> None:
    heard: list[str] = []

    async def hear(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        heard.extend([event.event_kind async for event in events])

    agent = agent_of(Reply(calls=[Call("look")]), SAID, event_stream_handler=hear)

    @agent.tool_plain
    def look() -> str:
        return "well"

    elsewhere = Elsewhere(agent)
    for _ in range(2):
        assert elsewhere.run("Well?").output == SAID
    kinds = [invocation.kind.value for invocation in elsewhere.performed]
    assert kinds.count("model_stream") == 2
    assert kinds.count("event_delivery") == heard.count("function_tool_call") + heard.count(
        "function_tool_result"
    )
    # As the model gave it, and not as one piece.
    assert heard.count("part_delta") > 1


def test_a_budget_holds() -> None:
    agent = agent_of(Reply(calls=[Call("look")]), budget=Budget(requests=2))

    @agent.tool_plain
    def look() -> str:
        return "nothing new"

    elsewhere = Elsewhere(agent)
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            elsewhere.run("Anything new?")
    assert sum("model.request" in key for key in elsewhere.asked()) == 2


def test_a_server_is_asked_where_its_requests_are_performed() -> None:
    keys: list[Any] = []
    server = MCPServer("depot")

    @server.tool()
    def ship(ctx: McpContext, parcel: int) -> str:
        keys.append((ctx.request_context.meta or {}).get("perdure/operation_key"))
        return f"shipped {parcel}"

    def agent() -> Agent[Any, Any]:
        return Agent(
            ScriptedModel([Reply(calls=[Call("ship", {"parcel": 7})]), "Shipped."]),
            name="support",
            toolsets=[MCPToolset(server, id="depot")],
            capabilities=[Durable[Any]()],
        )

    journal, inside = MemoryJournal(), agent()
    journal.run(lambda _: inside.run("Ship it."))
    elsewhere = Elsewhere(agent())
    for _ in range(2):
        assert elsewhere.run("Ship it.").output == "Shipped."
    assert journal.steps() == sorted((each.step_id, each.sequence) for each in elsewhere.performed)
    assert [*journal.inputs().values()] == [each.input_json for each in elsewhere.performed]
    call = elsewhere.performed[2]
    identity = identity_of(call, EffectPolicy(target="depot.ship"))
    assert keys == [identity.operation_key] * 2


@pytest.mark.parametrize(
    "made",
    [
        lambda: agent_of("Never.", wait_for_answers=True),
        lambda: agent_of("Never.", answer_seconds=5.0),
        lambda: agent_of("Never.", steered_by="said"),
        lambda: Agent(
            ScriptedModel(["Never."]),
            name="support",
            toolsets=[DynamicToolset[Any](lambda ctx: FunctionToolset(id="made"), id="each")],
            capabilities=[Durable[Any]()],
        ),
    ],
    ids=["waits", "waits for a time", "is steered", "toolset made in each step"],
)
def test_what_only_a_run_has_is_refused_before_anything(made: Callable[[], Any]) -> None:
    elsewhere = Elsewhere(made())
    with pytest.raises(UserError, match="on a runtime"):
        elsewhere.run("Well?")
    assert elsewhere.performed == []


def test_only_a_durable_agent_has_handlers() -> None:
    with pytest.raises(UserError, match="no Durable"):
        agent_handlers(Agent(ScriptedModel(["Well."]), name="plain"), Handlers())


class Answers(ExternalEventWaiter):
    """Has an answer to whatever is asked, as code of a workflow has that waited for a signal."""

    async def wait(self, name: str, *, ask: Any, timeout: timedelta | None) -> Any:
        await ask(f"token of {name}")
        return {"approvals": {"call-1-1": True}}


def test_what_comes_from_outside_is_waited_for_by_the_code_around_the_agent() -> None:
    tokens: list[str] = []

    async def ask(ctx: Any, requests: DeferredToolRequests, token: str) -> None:
        tokens.append(token)

    agent = Agent(
        ScriptedModel([Reply(calls=[Call("refund")]), "Refunded."]),
        name="support",
        capabilities=[RequestInput[None](ask=ask), Durable[None]()],
    )

    @agent.tool
    def refund(ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "ok"

    with pytest.raises(UserError, match="does not support waiting"):
        Elsewhere(agent).run("Refund.")
    elsewhere = Elsewhere(agent)
    with external_event_scope(Answers()):
        assert elsewhere.run("Refund.").output == "Refunded."
    assert tokens == ["token of deferred_tool_calls"]
    calls = [key for key in elsewhere.asked() if "tool.call" in key]
    assert calls == ["run-1/tool.call/1", "run-1/tool.call.repeat.2/1"]
