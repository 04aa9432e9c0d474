from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks import durability
from benchmarks.measure import in_milliseconds, interleaved, paired, percentile
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE
from benchmarks.work import echo
from perdure import App, Context


def measure(setting: Setting) -> list[Figure]:
    """Time runs of one operation, one after another, from start to result."""
    return asyncio.run(_measure(setting))


async def _measure(setting: Setting) -> list[Figure]:
    database = setting.database("p5")
    count = setting.scale(400, 100)
    payload = text(PAYLOAD_BYTES).encode()
    app = App(database.url)
    blocks: list[list[float]] = []
    floor_blocks: list[list[float]] = []

    @app.run(version=1)
    async def single(context: Context, payload: str) -> str:
        return await context.call(echo, payload)

    async def ours() -> float:
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            handle = await app.start(single, payload.decode())
            await handle.result()
            times.append(time.perf_counter() - began)
        blocks.append(times)
        return median(times)

    entry = ("run-1/call/1", payload, payload)
    async with app:
        with database.floor(entry) as floor:

            def three_commits() -> float:
                floor_blocks.append([floor.seconds(3, [entry]) for _ in range(count)])
                return median(floor_blocks[-1])

            for _ in range(1 + setting.scale(2200, 100) // count):
                await ours()
            blocks.clear()
            samples, floors = await interleaved(setting.scale(9, 5), three_commits, ours)
    return [_p50(samples, floors), _p99(blocks, floor_blocks)]


def _p50(samples: list[float], floors: list[float]) -> Figure:
    label = "a run of one operation, start to result, p50"
    return in_milliseconds(label, samples, floors, [Target(1.6), Target(2.0, of="ratio")], "p50")


def _p99(blocks: list[list[float]], floor_blocks: list[list[float]]) -> Figure:
    samples = [percentile(block, 0.99) * 1000 for block in blocks]
    floors = [percentile(block, 0.99) * 1000 for block in floor_blocks]
    return Figure(
        label="the same, p99",
        value=median(samples),
        unit="ms",
        floor=median(floors),
        floor_unit="ms",
        ratio=paired(samples, floors),
        targets=[Target(4.0)],
        name="p99",
        samples=samples,
        floor_samples=floors,
    )


ROW = Row(
    number="P5",
    work="a run of one operation",
    floor="three commits of the same bytes",
    measure=measure,
    check=lambda setting: durability.check(setting, runs=100, operations=1),
    storages=[SQLITE, POSTGRES],
)
