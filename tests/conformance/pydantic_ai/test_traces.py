"""Runs of other agents, as recorded: an equivalent run here has the same identities, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, ModelRetry, RunContext, Tool, ToolDefinition, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError, ModelServerError, UnexpectedModelBehavior
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.toolsets import ExternalToolset

from perdure import Context, RetryPolicy
from perdure.adapters.pydantic_ai import Durable
from perdure.approvals import Answer, Approve, Deny, Result
from perdure.journal import Invocation
from perdure.perform import Performer
from perdure.testing.scripted import Call, Reply, ScriptedModel, Trouble
from tests.conformance.pydantic_ai.journal import MemoryJournal
from tests.harness import run
from tests.waiting import waiting_app

VECTORS = Path(__file__).parents[2] / "vectors" / "agent" / "traces.jsonl"
TRACES: dict[str, Any] = {
    trace["name"]: trace for trace in map(json.loads, VECTORS.read_text().splitlines())
}

SPECIFIC = {
    "namespace/overflow-129": "a run shortens its namespaces; Binding refuses as the trace does",
    "tool/suspended-record": "a suspended call makes the run wait, and no model hears of it",
    "preflight/matrix": "no operation is asked for: it is about what is refused before the first",
}
DIFFERENT = {
    "retry/two-transient-throws": "a retry is of its operation: model.request/1 with attempts",
    "retry/no-backoff-no-timer": "the same, and each retry has a delay, if one of 0 ms",
}
ALONE = {
    "event/application": "an event that no agent has",
    "mcp/identities-and-errors": "requests to MCP servers without an agent",
}
"""What `test_traces_alone.py` reproduces."""
ANSWERED: dict[str, Answer] = {
    "approval/approve": Approve(),
    "approval/worker-overrides": Deny(),
    "approval/checkpoint": Deny(),
}
"""What is answered where a publication needs approval; something else is done elsewhere."""
Identity = tuple[str, str, int]
ADDED = {
    "mcp.list.": "what a server offers is recorded, since a replay must offer the same",
    "event.": "what a handler is told is delivered once, and so recorded",
}
"""Step ids that a run here has beside those of the traces."""


def identities(name: str, *dispositions: str) -> list[Identity]:
    return [
        (step["kind"], step["step_id"], step["sequence"])
        for step in TRACES[name]["steps"]
        if step["disposition"] in dispositions
    ]


def script(name: str, *troubles: Exception) -> list[Reply]:
    """Return what the model said in a trace, for a model to say it again."""
    replies = [_reply(step["parts"], troubles) for step in TRACES[name]["steps"] if "parts" in step]
    return replies or [Reply(text="never", troubles=[Trouble(error) for error in troubles])]


def _reply(parts: list[Any], troubles: tuple[Exception, ...]) -> Reply:
    said = {kind: _of_kind(parts, kind) for kind in ("text", "thinking", "tool-call")}
    return Reply(
        text="".join(part["content"] for part in said["text"]),
        thinking="".join(part["content"] for part in said["thinking"]),
        calls=[
            Call(part["tool_name"], json.loads(part["args"]), part["tool_call_id"])
            for part in said["tool-call"]
        ],
        troubles=[Trouble(error) for error in troubles],
    )


def _of_kind(parts: list[Any], kind: str) -> list[Any]:
    return [part for part in parts if part["part_kind"] == kind]


class Run:
    """A run whose operations are written down in the order in which they are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.journal = MemoryJournal()
        self._asked: list[Identity] = []
        for name in ("perform", "delay", "wait_for"):
            monkeypatch.setattr(Performer, name, self._watched(getattr(Performer, name)))

    def execute(self, code: Callable[[Context], Awaitable[Any]]) -> list[Identity]:
        """Execute code and return what it asked for, but for what runs here add."""
        self.forget()
        self.journal.run(code)
        return self.asked()

    def forget(self) -> None:
        """Forget what was asked for so far: an execution begins."""
        self._asked.clear()

    def asked(self) -> list[Identity]:
        """Return what the last execution asked for."""
        return [each for each in self._asked if not each[1].startswith(tuple(ADDED))]

    def _watched(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(
            performer: Performer, invocation: Invocation, *args: Any, **options: Any
        ) -> Any:
            self._asked.append((invocation.kind.value, invocation.step_id, invocation.sequence))
            return await method(performer, invocation, *args, **options)

        return watched


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def weather(city: str = "") -> str:
    return "27"


def failing_weather() -> str:
    raise ModelRetry("Boom.")


async def unheard(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for _ in events:
        pass


def catalogue() -> MCPToolset[None]:
    server = MCPServer("catalogue")

    @server.tool()
    def lookup(q: int) -> str:
        return "hit"

    return MCPToolset(server, id="catalogue")


def agent(name: str, *troubles: Exception, durable: Any = None, **options: Any) -> Agent[None, Any]:
    capabilities = [Durable(**(durable or {}))]
    model = ScriptedModel(script(name, *troubles))
    return Agent(model, name="traced", capabilities=capabilities, **options)


def asking(asked: Agent[None, Any]) -> Callable[[Context], Awaitable[Any]]:
    return lambda context: asked.run("go")


def with_final(name: str, strategy: Any) -> Agent[None, Any]:
    def final(answer: int) -> int:
        return answer

    def lookup() -> str:
        return "hit"

    output = ToolOutput(final, name="final")
    return agent(name, tools=[weather, lookup], output_type=output, end_strategy=strategy)


def with_tools(name: str) -> Agent[None, Any]:
    plan = Tool(lambda: "planned", name="plan", metadata={"perdure": False})
    return agent(name, tools=[weather, plan], toolsets=[catalogue()])


def with_failing_tool(name: str) -> Agent[None, Any]:
    return agent(name, tools=[Tool(failing_weather, name="weather", max_retries=2)])


OVERLOADED = ModelHTTPError.for_category(ModelServerError, status_code=503, model_name="m")
SHORT = RetryPolicy(most_delay_seconds=0.001)
EQUIVALENTS: dict[str, Callable[[str], Agent[None, Any]]] = {
    "model-request/text-and-replay": partial(
        agent, system_prompt="be brief", instructions="speak é"
    ),
    "namespace/graph": agent,
    "tools/sequential-app-mcp-workflow": with_tools,
    "tools/output-tool-ordinals-early": partial(with_final, strategy="early"),
    "tools/output-tool-ordinals-graceful": partial(with_final, strategy="early"),
    "retry/delay-budget-exceeded": lambda name: agent(name, OVERLOADED, durable={"retry": SHORT}),
    "retry/persisted-failure-not-retried": (
        lambda name: agent(name, OVERLOADED, durable={"retry": None})
    ),
    "tool/failure-record": with_failing_tool,
    "tool/failure-exhausts-retries": with_failing_tool,
    "stream/normalised-events": partial(
        agent, tools=[weather], durable={"event_stream_handler": unheard}
    ),
}


def test_every_trace_is_reproduced_or_said_why_not() -> None:
    assert len(TRACES) == 20
    left = {**SPECIFIC, **DIFFERENT, **ALONE, **ANSWERED}
    assert EQUIVALENTS.keys() | left.keys() == TRACES.keys()
    assert not EQUIVALENTS.keys() & left.keys()


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_an_equivalent_run_has_the_identities_of_the_trace(traced: Run, name: str) -> None:
    equivalent = EQUIVALENTS[name](name)
    expected = identities(name, "executed", "thrown")
    code = asking(equivalent)
    if name == "namespace/graph":

        async def code(context: Context) -> None:
            context._child("graph.2.step.1").enter()
            await equivalent.run("go")

    for _ in range(2):
        if TRACES[name]["error"] is None:
            assert traced.execute(code) == expected
        else:
            with pytest.raises((ModelServerError, UnexpectedModelBehavior)):
                traced.execute(code)
            assert traced.asked() == expected
    assert traced.journal.executed == 0
    assert identities(name, "replayed") in ([], expected)


@pytest.mark.parametrize("name", ANSWERED)
def test_calls_that_wait_have_the_identities_of_the_trace(
    traced: Run, tmp_path: Path, name: str
) -> None:
    """All are asked for at once here, and a turn goes on as it began: by requests or streams."""
    elsewhere = ToolDefinition(name="poll", parameters_json_schema={"type": "object"})

    async def turn() -> list[Identity]:
        app = waiting_app(tmp_path)
        asked = agent(name, toolsets=[ExternalToolset([elsewhere], id="elsewhere")])
        asked.tool_plain(name="read")(lambda n: n)
        asked.tool_plain(name="publish", requires_approval=True)(lambda n: n)

        @app.run(version=1)
        async def publish(context: Context) -> str:
            traced.forget()
            return (await asked.run("go")).output

        async with app:
            handle = await app.start(publish)
            while len(await app.approvals()) < 2:
                await asyncio.sleep(0)
            await app.resolve(handle.run_id, "3", ANSWERED[name], by="ada")
            await app.resolve(handle.run_id, "4", Result("polled"), by="depot")
            assert await handle.result() == "published"
        return traced.asked()

    expected = [
        ("model_request", "model.request", number)
        if kind == "model_stream"
        else (kind, step, number)
        for kind, step, number in identities(name, "executed")
    ]
    asked = run(turn())
    assert sorted(asked) == sorted(expected)
    if name != "approval/approve":
        assert asked == expected


def test_calls_beside_an_output_have_the_numbers_that_the_trace_says(traced: Run) -> None:
    """Where they are made: an agent here makes them unless its strategy is early."""
    name = "tools/output-tool-ordinals-graceful"
    asked = traced.execute(asking(with_final(name, "graceful")))
    calls = [("tool_call", "tool.call", number) for number in (2, 3)]
    assert asked == [*identities(name, "executed"), *calls]


def test_a_retry_is_told_apart_by_its_operation_here(traced: Run) -> None:
    """The trace has model.request/1, retry.delay/1, model.request/2, and so on."""
    name = "retry/two-transient-throws"
    durable = {"retry": RetryPolicy(initial_seconds=0)}
    asked = traced.execute(asking(agent(name, OVERLOADED, OVERLOADED, durable=durable)))
    assert [kind for kind, _, _ in asked] == ["model_request", "retry_delay", "retry_delay"]
    assert traced.journal.record("model.request").attempt == 3
    assert len(identities(name, "thrown")) == 2
