from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks import durability
from benchmarks.floor import Floor
from benchmarks.measure import RUNS, Ticker, interleaved, paired
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from perdure import App, Context

_RUNS_AT_ONCE = 64
_OPERATIONS = 50


async def _echo(payload: str) -> str:
    return payload


def measure(setting: Setting) -> list[Figure]:
    """Time many runs at once, and how long they keep the event loop from others."""
    return asyncio.run(_measure(setting))


async def _measure(setting: Setting) -> list[Figure]:
    folder = setting.path("p3")
    payload = text(PAYLOAD_BYTES).encode()
    app = App(f"sqlite:///{folder / 'runs.db'}")
    stalls: list[list[float]] = []

    @app.run(version=1)
    async def sequence(context: Context, payload: str) -> None:
        for _ in range(_OPERATIONS):
            await context.call(_echo, payload)

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
    return [_rate(samples, floors), _stall(stalls)]


def _rate(samples: list[float], floors: list[float]) -> Figure:
    return Figure(
        label=f"{_RUNS_AT_ONCE} runs of {_OPERATIONS} operations at once",
        value=median(samples),
        unit="/s",
        floor=median(floors),
        floor_unit="/s",
        ratio=paired(samples, floors),
        targets=[Target(12_000, at_least=True)],
        samples=samples,
        floor_samples=floors,
    )


def _stall(stalls: list[list[float]]) -> Figure:
    longest = [max(run) * 1000 for run in stalls]
    return Figure(
        label="the same: longest time that the event loop stands still",
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
