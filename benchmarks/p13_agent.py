from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.run import AgentRunResult
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from benchmarks import durability
from benchmarks.child import say
from benchmarks.ledger import Ledger
from benchmarks.measure import RUNS, interleaved, paired
from benchmarks.payload import text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE, size
from perdure import App, Context, operation
from perdure.adapters.pydantic_ai import Durable
from perdure.testing.scripted import Call, Reply, Request, ScriptedModel

_REQUESTS = 100
_QUESTION_BYTES, _REPLY_BYTES, _ARGUMENT_BYTES, _RETURN_BYTES = 400, 500, 120, 1200

Heard = Callable[[str], None]


def measure(setting: Setting) -> list[Figure]:
    """Time a conversation with and without perdure, and weigh what it leaves on the disk."""
    return asyncio.run(_measure(setting))


async def _measure(setting: Setting) -> list[Figure]:
    requests = setting.scale(_REQUESTS, 20)
    plain = _agent(requests)
    durable = _agent(requests, capabilities=[Durable()])
    app = App(setting.database("p13").url)

    @app.run(version=1)
    async def turn(context: Context) -> None:
        await _converse(durable)

    async def alone() -> float:
        began = time.perf_counter()
        await _converse(plain)
        return (time.perf_counter() - began) / requests * 1000

    async def ours() -> float:
        began = time.perf_counter()
        handle = await app.start(turn)
        await handle.result()
        return (time.perf_counter() - began) / requests * 1000

    async with app:
        await alone()
        await ours()
        samples, floors = await interleaved(setting.scale(9, RUNS), alone, ours)
    return [
        _added(requests, samples, floors),
        await _size(setting.database("p13-size").url, requests),
    ]


def _added(requests: int, samples: list[float], floors: list[float]) -> Figure:
    added = [one - other for one, other in zip(samples, floors, strict=True)]
    return Figure(
        label=f"an agent, {requests} requests, {requests - 1} tool calls: added to each pair",
        value=median(added),
        unit="ms",
        floor=median(floors),
        floor_unit="ms",
        ratio=paired(samples, floors),
        targets=[Target(1.5)],
        samples=added,
        floor_samples=floors,
    )


async def _size(url: str, requests: int) -> Figure:
    """Weigh one conversation: what the database grows by, over the transcript as JSON."""
    app = App(url)
    agent = _agent(requests, capabilities=[Durable()])
    transcripts: list[bytes] = []

    @app.run(version=1)
    async def turn(context: Context) -> None:
        transcripts.append((await _converse(agent)).all_messages_json())

    async with app:
        pass
    before = size(url)
    async with app:
        handle = await app.start(turn)
        await handle.result()
    grown = size(url) - before
    return Figure(
        label="the same: bytes on the disk, requests recorded, over those of the transcript",
        value=grown / 1000,
        unit="KB",
        floor=len(transcripts[0]) / 1000,
        floor_unit="KB",
        ratio=grown / len(transcripts[0]),
        targets=[Target(1.3, of="ratio")],
    )


async def _converse(agent: Agent[None, str]) -> AgentRunResult[str]:
    question = text(_QUESTION_BYTES, 1)
    return await agent.run(question, usage_limits=UsageLimits(request_limit=None))


def _agent(requests: int, hear: Heard | None = None, **options: Any) -> Agent[None, str]:
    """Return an agent that thinks aloud and asks one tool in each reply but the last."""
    tools: FunctionToolset[None] = FunctionToolset(id="library")

    @tools.tool_plain
    @operation(read_only=True)
    async def look_up(number: int, query: str) -> str:
        """Look something up in the library."""
        if hear is not None:
            hear(f"tool-{number}")
        return text(_RETURN_BYTES, 10_000 + number)

    def asked(request: Request) -> None:
        if hear is not None:
            hear(f"request-{request.number}")

    script = [
        Reply(
            text=text(_REPLY_BYTES, 100 + number),
            calls=[Call("look_up", {"number": number, "query": text(_ARGUMENT_BYTES, number)})],
        )
        for number in range(1, requests)
    ]
    model = ScriptedModel([*script, text(_REPLY_BYTES, 100)], on_request=asked)
    return Agent(
        model,
        name="librarian",
        instructions=text(300, 2),
        toolsets=[tools],
        **options,
    )


def _check(setting: Setting) -> None:
    requests = setting.scale(_REQUESTS, 20)
    durability.kill_and_count(setting, "p13_agent", 2 * requests - 1, requests)


def child(url: str, ledger_path: str, requests: str) -> None:
    """Hold the conversation, or go on with it; each call tells that the one before is done."""
    ledger = Ledger(Path(ledger_path))
    app = App(url)
    order = [
        f"{kind}-{number + 1}" for number in range(int(requests)) for kind in ("request", "tool")
    ]

    def hear(name: str) -> None:
        if name != order[0]:
            ledger.write("done", order[order.index(name) - 1])
        ledger.write("called", name)

    agent = _agent(int(requests), hear, capabilities=[Durable()])

    @app.run(version=1)
    async def turn(context: Context) -> int:
        result = await _converse(agent)
        ledger.write("done", order[-2])
        return result.usage.requests + result.usage.tool_calls

    async def main() -> None:
        async with app:
            handle = await app.start(turn, run_id="conversation")
            say(await handle.result())

    asyncio.run(main())


ROW = Row(
    number="P13",
    work="a Pydantic AI agent",
    floor="the same agent without perdure; the transcript as JSON",
    measure=measure,
    check=_check,
    storages=[SQLITE, POSTGRES],
)
