from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import durability
from benchmarks.floor import Floor
from benchmarks.measure import RUNS, interleaved, paired
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from perdure import App, Context, effect, operation

_WARMING = 6500
"""Enough operations for the log to have been folded a few times, and to grow no longer."""


@operation(read_only=True)
async def _echo(payload: str) -> str:
    return payload


@effect(support="idempotent", target="bank")
async def _charge(payload: str) -> str:
    return payload


def measure(setting: Setting) -> list[Figure]:
    """Time one run of operations one after another, from its start to its result."""
    return [
        asyncio.run(_measure(setting, "p1", _echo, "operations", 1.6)),
        asyncio.run(_measure(setting, "p1-guarded", _charge, "guarded effects", 2.6)),
    ]


async def _measure(
    setting: Setting, name: str, function: Callable[..., Any], what: str, limit: float
) -> Figure:
    folder = setting.path(name)
    operations = setting.scale(500, 200)
    payload = text(PAYLOAD_BYTES).encode()
    app = App(f"sqlite:///{folder / 'runs.db'}")

    @app.run(version=1)
    async def sequence(context: Context, payload: str) -> None:
        for _ in range(operations):
            await context.call(function, payload)

    async def ours() -> float:
        began = time.perf_counter()
        handle = await app.start(sequence, payload.decode())
        await handle.result()
        return (time.perf_counter() - began) / operations

    entry = ("run-1/call/1", payload, payload)
    with Floor(folder / "floor.db", entry) as floor:
        async with app:
            for _ in range(1 + _WARMING // operations):
                await ours()
            samples, floors = await interleaved(
                setting.scale(9, RUNS),
                lambda: floor.seconds(operations, [entry]) / operations,
                ours,
            )
    return Figure(
        label=f"one run, {operations} {what} one after another, each",
        value=median(samples) * 1000,
        unit="ms",
        floor=median(floors) * 1000,
        floor_unit="ms",
        ratio=paired(samples, floors),
        targets=[Target(limit, of="ratio")],
        samples=[sample * 1000 for sample in samples],
        floor_samples=[sample * 1000 for sample in floors],
    )


ROW = Row(
    number="P1",
    work="operations one after another",
    floor="insert and commit of the same bytes",
    measure=measure,
    check=lambda setting: durability.check(setting, runs=1, operations=500),
)
