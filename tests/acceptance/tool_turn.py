"""A turn with one tool call, in a process that is killed right after the tool did its work."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ToolReturnPart

from perdure import App, Context, OperationIdentity, RunNeedsAttention, effect, operation
from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.effects.answer import Answer, Landed, NeverWill
from perdure.effects.support import EffectPolicy, OnAmbiguous
from perdure.testing.crash import CrashAt
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.acceptance.children import note, notes
from tests.acceptance.mcp_counter import SCENARIO

RUN_ID = "turn-1"


def use_function(folder: Path, kind: str, killed: bool) -> None:
    """Let an agent pay with a function of its own, declared as `kind`."""
    _take_turn(folder, function_agent(folder, kind), "tool.call/1" if killed else None)


def use_server(folder: Path, url: str, tool: str, trusted: Collection[str], killed: bool) -> None:
    """Let an agent call a tool of a server."""
    agent = server_agent(folder, url, tool, trusted)
    _take_turn(folder, agent, "mcp.request/1" if killed else None)


def function_agent(folder: Path, kind: str) -> Agent[None, str]:
    """Return an agent whose tool counts its calls in a file."""

    def pay(cents: int) -> dict[str, int]:
        note(folder / "effects.log", effect="pay", about=cents)
        return {"paid": cents}

    def pay_by_key(cents: int, operation: OperationIdentity) -> dict[str, int]:
        note(folder / "effects.log", effect="pay", about=cents, key=operation.operation_key)
        return {"paid": cents}

    declared: Callable[..., Any] = {
        "default": lambda: pay,
        "idempotent": lambda: effect(support="idempotent")(pay_by_key),
        "queryable": lambda: effect(support="outcome_queryable")(pay_by_key),
        "read_only": lambda: operation(read_only=True)(pay),
        "tell": lambda: effect(on_ambiguous="tell")(pay),
    }[kind]()

    async def find(operation: OperationIdentity) -> Answer:
        paid = notes(folder / "effects.log", key=operation.operation_key)
        return Landed({"paid": paid[0]["about"]}) if paid else NeverWill()

    if kind == "queryable":
        declared.lookup(find)
    agent = Agent(_model("pay", {"cents": 5}), name="payer", capabilities=[Durable()])
    agent.tool_plain(name="pay")(declared)
    return agent


def server_agent(
    folder: Path, url: str, tool: str, trusted: Collection[str], *, tell: bool = False
) -> Agent[None, str]:
    """Return an agent that calls one tool of the counting server."""
    telling = ToolConfig(effect=EffectPolicy(on_ambiguous=OnAmbiguous.TELL))
    told = [SetToolMetadata[None](perdure=telling)] if tell else []
    return Agent(
        _model(tool, {"city": "Oslo"}),
        name="payer",
        toolsets=[MCPToolset(url, id="parcels", headers={SCENARIO: str(folder)})],
        capabilities=[*told, Durable(trusted_servers=trusted)],
    )


def _model(tool: str, arguments: dict[str, Any]) -> ScriptedModel:
    return ScriptedModel([Reply(calls=[Call(tool, arguments)]), "Done."])


def app_of(folder: Path, agent: Agent[None, str], **options: Any) -> tuple[App, Any]:
    """Return an App, and its function that returns what the tool told the model."""
    app = App(f"sqlite:///{folder}/runs.db", **options)

    @app.run(version=1)
    async def turn(context: Context) -> list[Any]:
        result = await agent.run("Go.")
        parts = [part for message in result.all_messages() for part in message.parts]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)]

    return app, turn


def _take_turn(folder: Path, agent: Agent[None, str], killed_in: str | None) -> None:
    """Take the turn, or be killed when an operation has had its effect and has no record yet."""
    options = {"probe": CrashAt(f"operation.called {killed_in}")} if killed_in else {}
    app, turn = app_of(folder, agent, **options)
    try:
        ended = {"told": app.run_sync(turn, run_id=RUN_ID)}
    except RunNeedsAttention as parked:
        ended = {"parked": parked.code}
    (folder / "ended.json").write_text(json.dumps(ended))
