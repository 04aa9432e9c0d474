from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import durability
from benchmarks.measure import RUNS, Ticker, a_second, interleaved
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import SQLITE
from benchmarks.work import charge, echo
from perdure import App, Context

RUNS_AT_ONCE = 64
_OPERATIONS = 50


def row(number: str, storage: str, plain: float, guarded: float) -> Row:
    """Return the row on a storage, with the least operations a second that it has to make."""

    def measure(setting: Setting) -> list[Figure]:
        return [
            *asyncio.run(_measure(setting, f"{number}-plain", echo, "operations", plain)),
            *asyncio.run(
                _measure(setting, f"{number}-guarded", charge, "guarded effects", guarded)
            ),
        ]

    return Row(
        number=number,
        work="many runs at once",
        floor=f"{RUNS_AT_ONCE} rows of the same bytes in one transaction",
        measure=measure,
        check=lambda setting: durability.check(setting, runs=RUNS_AT_ONCE, operations=_OPERATIONS),
        storages=[storage],
    )


async def _measure(
    setting: Setting, name: str, function: Callable[..., Any], what: str, least: float
) -> list[Figure]:
    """Time many runs at once, and how long they keep the event loop from others."""
    database = setting.database(name)
    payload = text(PAYLOAD_BYTES).encode()
    app = App(database.url)
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
        await asyncio.gather(*(one() for _ in range(RUNS_AT_ONCE)))
        return RUNS_AT_ONCE * _OPERATIONS / (time.perf_counter() - began)

    async def watched() -> float:
        async with Ticker() as ticker:
            rate = await ours()
        stalls.append(ticker.stalls)
        return rate

    entries = [("run-1/call/1", payload, payload)] * RUNS_AT_ONCE
    async with app:
        with database.floor(entries[0]) as floor:
            for _ in range(3):
                await ours()
            samples, floors = await interleaved(
                setting.scale(15, RUNS),
                lambda: len(entries) * _OPERATIONS / floor.seconds(_OPERATIONS, entries),
                ours,
            )
        for _ in range(setting.scale(15, RUNS)):
            await watched()
    label = f"{RUNS_AT_ONCE} runs of {_OPERATIONS} {what} at once"
    name = "rate" if function is echo else "guarded"
    target = Target(least, at_least=True)
    return [a_second(label, samples, floors, [target], name), _stall(stalls, what)]


def _stall(stalls: list[list[float]], what: str) -> Figure:
    longest = [max(run) * 1000 for run in stalls]
    return Figure(
        label=f"the same {what}: longest time that the event loop stands still",
        value=median(longest),
        unit="ms",
        targets=[Target(5.0)],
        samples=longest,
    )


ROW = row("P3", SQLITE, 12_000, 7_000)
