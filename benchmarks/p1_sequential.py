from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks import durability
from benchmarks.measure import RUNS, in_milliseconds, interleaved
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import SQLITE
from benchmarks.work import charge, echo
from perdure import App, Context

_WARMING = 6500
"""Enough operations for the log to have been folded a few times, and to grow no longer."""


def row(number: str, storage: str, plain: float, guarded: float) -> Row:
    """Return the row on a storage, with the most that its two figures may be over the floor."""

    def measure(setting: Setting) -> list[Figure]:
        return [
            asyncio.run(_measure(setting, f"{number}-plain", echo, "operations", plain)),
            asyncio.run(_measure(setting, f"{number}-guarded", charge, "guarded effects", guarded)),
        ]

    return Row(
        number=number,
        work="operations one after another",
        floor="insert and commit of the same bytes",
        measure=measure,
        check=lambda setting: durability.check(setting, runs=1, operations=500),
        storages=[storage],
    )


async def _measure(
    setting: Setting, name: str, function: Callable[..., Any], what: str, limit: float
) -> Figure:
    """Time one run of operations one after another, from its start to its result."""
    database = setting.database(name)
    operations = setting.scale(500, 200)
    payload = text(PAYLOAD_BYTES).encode()
    app = App(database.url)

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
    async with app:
        with database.floor(entry) as floor:
            for _ in range(1 + setting.scale(_WARMING, 400) // operations):
                await ours()
            samples, floors = await interleaved(
                setting.scale(9, RUNS),
                lambda: floor.seconds(operations, [entry]) / operations,
                ours,
            )
    label = f"one run, {operations} {what} one after another, each"
    name = "each" if function is echo else "guarded"
    return in_milliseconds(label, samples, floors, [Target(limit, of="ratio")], name)


ROW = row("P1", SQLITE, 1.6, 2.6)
