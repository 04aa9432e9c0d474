from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import durability
from benchmarks.floor import Floor
from benchmarks.measure import RUNS, Ticker, interleaved, paired
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.work import charge, echo
from perdure import App, Context

_RUNS_AT_ONCE = 64
_OPERATIONS = 50


def measure(setting: Setting) -> list[Figure]:
    """Time many runs at once, and how long they keep the event loop from others."""
    return [
        *asyncio.run(_measure(setting, "p3", echo, "operations", 12_000)),
        *asyncio.run(_measure(setting, "p3-guarded", charge, "guarded effects", 7_000)),
    ]


async def _measure(
    setting: Setting, name: str, function: Callable[..., Any], what: str, least: float
) -> list[Figure]:
    folder = setting.path(name)
    payload = text(PAYLOAD_BYTES).encode()
    app = App(f"sqlite:///{folder / 'runs.db'}")
    stalls: list[list[float]] = []

    @app.run(version=1)
    async def sequence(context: Context, payload: str) -> None:
        for _ in range(_OPERATIONS):
            await context.call(function, payload)

    async def one() -> None:
        handle = await app.start(sequence, payload.decode())
        await handle.result()

    async def ours() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(_RUNS_AT_ONCE)))
        return _RUNS_AT_ONCE * _OPERATIONS / (time.perf_counter() - began)

    async def watched() -> float:
        async with Ticker() as ticker:
            rate = await ours()
        stalls.append(ticker.stalls)
        return rate

    entries = [("run-1/call/1", payload, payload)] * _RUNS_AT_ONCE
    with Floor(folder / "floor.db", entries[0]) as floor:
        async with app:
            for _ in range(3):
                await ours()
            samples, floors = await interleaved(
                setting.scale(15, RUNS),
                lambda: len(entries) * _OPERATIONS / floor.seconds(_OPERATIONS, entries),
                ours,
            )
            for _ in range(setting.scale(15, RUNS)):
                await watched()
    return [_rate(samples, floors, what, least), _stall(stalls, what)]


def _rate(samples: list[float], floors: list[float], what: str, least: float) -> Figure:
    return Figure(
        label=f"{_RUNS_AT_ONCE} runs of {_OPERATIONS} {what} at once",
        value=median(samples),
        unit="/s",
        floor=median(floors),
        floor_unit="/s",
        ratio=paired(samples, floors),
        targets=[Target(least, at_least=True)],
        samples=samples,
        floor_samples=floors,
    )


def _stall(stalls: list[list[float]], what: str) -> Figure:
    longest = [max(run) * 1000 for run in stalls]
    return Figure(
        label=f"the same {what}: longest time that the event loop stands still",
        value=median(longest),
        unit="ms",
        targets=[Target(5.0)],
        samples=longest,
    )


ROW = Row(
    number="P3",
    work="many runs at once",
    floor=f"{_RUNS_AT_ONCE} rows of the same bytes in one transaction",
    measure=measure,
    check=lambda setting: durability.check(setting, runs=_RUNS_AT_ONCE, operations=_OPERATIONS),
)
