"""The turn that is killed everywhere: 4 model requests, 3 tools at once and 2 MCP calls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import FunctionToolset

from perdure import Context, effect
from perdure.adapters.pydantic_ai import Durable
from perdure.clock import SystemClock
from perdure.testing.crash import CrashAt, CrashPoints
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.acceptance.children import note
from tests.acceptance.mcp_counter import SCENARIO
from tests.storages import app_at

RUN_ID = "turn-1"
ANSWER = "All three are reserved, and Lisbon is the cheaper way to send them."
ITEMS = {"kettle": 0.02, "lamp": 0.01, "rug": 0.0}
CITIES = ("Lisbon", "Oslo")
OPERATIONS = {
    "model.request/1": "request 1",
    "tool.call/1": "reserve kettle",
    "tool.call/2": "reserve lamp",
    "tool.call/3": "reserve rug",
    "model.request/2": "request 2",
    "mcp.request/4": "quote Lisbon",
    "model.request/3": "request 3",
    "mcp.request/5": "quote Oslo",
    "model.stream/4": "request 4",
}
"""What each operation does outside: what it is counted by."""

_SCRIPT = [
    Reply(calls=[Call("reserve", {"item": item}) for item in ITEMS]),
    Reply(text="Now the postage.", calls=[Call("quote", {"city": CITIES[0]})]),
    Reply(calls=[Call("quote", {"city": CITIES[1]})]),
    Reply(text=ANSWER),
]


class FrozenClock(SystemClock):
    """A clock whose wall time stands still, so that any two runs have the same inputs."""

    def now(self) -> float:
        return 1_700_000_000.0


def create_shop(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        shop.execute("CREATE TABLE effects (effect TEXT, about TEXT)")


def list_points(folder: Path, url: str, found: Path) -> None:
    """Run the turn and write the points that it passed, one a line."""
    points = CrashPoints()
    _finish(folder, url, points)
    found.write_text("\n".join(points.passed))


def take_turn(folder: Path, url: str, crash: tuple[str, int] | None) -> None:
    """Start the turn or go on with it, up to its end or to a crash."""
    _finish(folder, url, CrashAt(*crash) if crash else _pass)


def _finish(folder: Path, url: str, probe: Callable[[str], None]) -> None:
    def noting(point: str) -> None:
        probe(point)
        moment, _, place = point.partition(" ")
        if moment == "operation.call":
            note(folder / "executed.log", operation=place)

    app = app_at(folder, clock=FrozenClock(), probe=noting)
    agent = _agent(folder, url, probe)

    @app.run(version=1)
    async def turn(context: Context, prompt: str) -> str:
        return await _stream_the_last(agent, prompt)

    answer = app.run_sync(turn, "Reserve a kettle, a lamp and a rug.", run_id=RUN_ID)
    assert answer == ANSWER


def _agent(folder: Path, url: str, probe: Callable[[str], None]) -> Agent:
    @effect(support="idempotent")
    async def reserve(item: str) -> str:
        probe(f"effect.before {item}")
        # The first call takes longest, so that they are recorded against their order.
        await asyncio.sleep(ITEMS[item])
        with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as shop, shop:
            shop.execute("INSERT INTO effects VALUES ('reserve', ?)", (item,))
        probe(f"effect.after {item}")
        return f"{item} reserved"

    model = ScriptedModel(
        _SCRIPT,
        log=folder / "model.log",
        clock=FrozenClock(),
        on_chunk=lambda request, number: probe(f"model.chunk {number}"),
    )
    toolsets = [
        FunctionToolset([reserve], id="shop"),
        MCPToolset(url, id="parcels", headers={SCENARIO: str(folder)}),
    ]
    return Agent(
        model, name="clerk", toolsets=toolsets, capabilities=[Durable(trusted_servers=["parcels"])]
    )


async def _stream_the_last(agent: Agent, prompt: str) -> str:
    requests = 0
    async with agent.iter(prompt) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                requests += 1
                if requests == len(_SCRIPT):
                    async with node.stream(run.ctx) as stream:
                        async for _ in stream.stream_text(debounce_by=None):
                            pass
    assert run.result is not None
    return run.result.output


def _pass(point: str) -> None:
    del point
