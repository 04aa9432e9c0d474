from __future__ import annotations

import asyncio
import itertools
import time

from benchmarks import durability
from benchmarks.measure import RUNS, a_second, in_milliseconds, interleaved
from benchmarks.payload import text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE
from perdure import App, Context, operation

PAYLOAD_BYTES = 64 * 1024
OPERATIONS = 100
RUNS_AT_ONCE = 64
OPERATIONS_EACH = 5


@operation(read_only=True)
async def rewrite(payload: str, seed: int) -> str:
    """Return other text of the same length: nothing of it was written before."""
    return text(len(payload), seed)


def measure(setting: Setting) -> list[Figure]:
    """Time operations with 64 KB in and out, one after another and many at once."""
    return asyncio.run(_measure(setting))


async def _measure(setting: Setting) -> list[Figure]:
    database = setting.database("p9")
    operations = setting.scale(OPERATIONS, 20)
    app = App(database.url)
    seeds = itertools.count()

    @app.run(version=1)
    async def large(context: Context, given: list[int]) -> None:
        first, count = given
        for number in range(count):
            seed = first + 2 * number
            await context.call(rewrite, text(PAYLOAD_BYTES, seed), seed + 1)

    async def one(count: int) -> None:
        first = 2 * count * next(seeds)
        await (await app.start(large, [first, count])).result()

    async def sequential() -> float:
        began = time.perf_counter()
        await one(operations)
        return (time.perf_counter() - began) / operations

    async def concurrent() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(one(OPERATIONS_EACH) for _ in range(RUNS_AT_ONCE)))
        return RUNS_AT_ONCE * OPERATIONS_EACH / (time.perf_counter() - began)

    payload = text(PAYLOAD_BYTES).encode()
    entries = [("run-1/call/1", payload, payload)] * RUNS_AT_ONCE
    runs = setting.scale(9, RUNS)
    async with app:
        with database.floor(entries[0]) as floor:
            await sequential()
            each = await interleaved(
                runs, lambda: floor.seconds(operations, entries[:1]) / operations, sequential
            )
            await concurrent()
            rates = await interleaved(
                runs, lambda: len(entries) / floor.seconds(1, entries), concurrent
            )
    return [_each(operations, *each), _rate(*rates)]


def _each(operations: int, samples: list[float], floors: list[float]) -> Figure:
    label = f"one run, {operations} operations with 64 KB in and out, each"
    return in_milliseconds(label, samples, floors, [Target(1.5, of="ratio")], "each")


def _rate(samples: list[float], floors: list[float]) -> Figure:
    label = f"{RUNS_AT_ONCE} runs of {OPERATIONS_EACH} such operations at once"
    return a_second(label, samples, floors, [Target(700, at_least=True)], "rate")


ROW = Row(
    number="P9",
    work="large payloads",
    floor=f"the same bytes in one transaction each, and {RUNS_AT_ONCE} in one",
    measure=measure,
    check=lambda setting: durability.check(
        setting, runs=4, operations=25, payload_bytes=PAYLOAD_BYTES
    ),
    storages=[SQLITE, POSTGRES],
)
