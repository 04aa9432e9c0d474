from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks import durability
from benchmarks.floor import Floor
from benchmarks.measure import RUNS, in_milliseconds, interleaved
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.work import charge, echo
from perdure import App, Context

_WARMING = 6500
"""Enough operations for the log to have been folded a few times, and to grow no longer."""


def measure(setting: Setting) -> list[Figure]:
    """Time one run of operations one after another, from its start to its result."""
    return [
        asyncio.run(_measure(setting, "p1", echo, "operations", 1.6)),
        asyncio.run(_measure(setting, "p1-guarded", charge, "guarded effects", 2.6)),
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
    label = f"one run, {operations} {what} one after another, each"
    return in_milliseconds(label, samples, floors, [Target(limit, of="ratio")])


ROW = Row(
    number="P1",
    work="operations one after another",
    floor="insert and commit of the same bytes",
    measure=measure,
    check=lambda setting: durability.check(setting, runs=1, operations=500),
)
