"""How the cost of one operation grows with what is stored, with what waits, and with a run."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import p6_replay
from benchmarks.grown import Grown
from benchmarks.measure import interleaved, paired
from benchmarks.payload import PAYLOAD_BYTES
from benchmarks.row import Database, Setting
from benchmarks.storages import Storage
from benchmarks.suite import NO_SERVER
from benchmarks.table import Line

RECORDS, WAITING, LENGTH = "records in the journal", "waiting runs", "operations in the run"
HEADINGS = ("row", "on", "against", "first", "last", "exponent", "of a logarithm", "verdict")
_REPLAYED = 1000
_SAMPLES = 5

Point = dict[str, Any]


def measure(
    setting: Setting, found: Mapping[str, Storage], chosen: Sequence[str]
) -> dict[str, list[Point]]:
    """Measure the costs at each size; return the points, and a fit of each of their series."""
    points: list[Point] = []
    for name in chosen:
        if name not in found:
            print(f"{name}: {NO_SERVER}", file=sys.stderr)
            continue
        here = dataclasses.replace(setting, folder=setting.folder / name, storage=found[name])
        axes: Mapping[str, Callable[[Setting], Sequence[Point]]] = {
            RECORDS: lambda here: asyncio.run(_stored(here, RECORDS)),
            WAITING: lambda here: asyncio.run(_stored(here, WAITING)),
            LENGTH: lambda here: asyncio.run(_long(here)),
        }
        for axis, take in axes.items():
            print(f"{name}: {axis} …", file=sys.stderr, flush=True)
            points += [{"storage": name, "axis": axis, **point} for point in take(here)]
            here.storage.drop()
    return {"points": points, "fits": fits(points)}


def sizes(setting: Setting, axis: str) -> Sequence[int]:
    """Return the sizes at which an axis is measured; a fiftieth of them in a hurry."""
    whole = {
        RECORDS: (1_000, 10_000, 100_000, 1_000_000),
        WAITING: (100, 1_000, 10_000, 100_000),
        LENGTH: (100, 300, 1_000, 3_000, 10_000),
    }[axis]
    return whole if not setting.quick else sorted({max(20, size // 50) for size in whole})


async def _stored(setting: Setting, axis: str) -> Sequence[Point]:
    """Measure all costs of one database that fills up."""
    database = setting.database(f"growth-{axis.split(maxsplit=1)[0]}")
    replayed = setting.scale(_REPLAYED, 50)
    points: list[Point] = []
    await asyncio.to_thread(p6_replay.record, database.url, replayed, PAYLOAD_BYTES)
    async with Grown.open(database) as grown:
        await grown.warm(setting.scale(2500, 50))
        for size in sizes(setting, axis):
            await (grown.fill(size) if axis == RECORDS else grown.wait(size))
            points += [
                await _cost(setting, "P1", size, grown.each_floor, grown.each),
                await _cost(setting, "P5", size, grown.single_floor, grown.single),
                await asyncio.to_thread(_replay, setting, database, size, replayed),
                await _cost(setting, "P12", size, grown.effects_floor, grown.effects),
            ]
    return points


async def _long(setting: Setting) -> Sequence[Point]:
    """Measure runs of different lengths, each in a database of its own."""
    points: list[Point] = []
    for size in sizes(setting, LENGTH):
        database = setting.database(f"growth-length-{size}")
        await asyncio.to_thread(p6_replay.record, database.url, size, PAYLOAD_BYTES)
        points.append(await asyncio.to_thread(_replay, setting, database, size, size))
        async with Grown.open(database, operations=size) as grown:
            await grown.warm(setting.scale(2500, 50))
            points.append(await _cost(setting, "P1", size, grown.each_floor, grown.each))
    return points


async def _cost(
    setting: Setting,
    row: str,
    size: int,
    floor: Callable[[], float],
    ours: Callable[[], Any],
) -> Point:
    samples, floors = await interleaved(setting.scale(_SAMPLES, 3), floor, ours)
    return {
        "row": row,
        "size": size,
        "milliseconds": median(samples) * 1000,
        "floor_milliseconds": median(floors) * 1000,
        "cost": paired(samples, floors),
    }


def _replay(setting: Setting, database: Database, size: int, records: int) -> Point:
    """Measure a replay; its floor is one SELECT, and would hide what grows in both."""
    told = [
        p6_replay.replay(database.url, records, PAYLOAD_BYTES)
        for _ in range(setting.scale(_SAMPLES, 2))
    ]
    seconds = median(one["seconds"] for one in told) / records
    return {
        "row": "P6",
        "size": size,
        "milliseconds": seconds * 1000,
        "floor_milliseconds": median(one["floor_seconds"] for one in told) / records * 1000,
        "cost": seconds * 1e6,
    }


def fits(points: Sequence[Point]) -> list[Point]:
    """Return for each series the exponent of size that its cost grows with.

    It is met by what grows no faster than a logarithm does over the same sizes.
    """
    series: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point["storage"], point["axis"], point["row"]), []).append(point)
    found: list[Point] = []
    for (storage, axis, row), members in series.items():
        steps = [point["size"] for point in members]
        grows = exponent(steps, [point["cost"] for point in members])
        allowed = exponent(steps, [math.log(size) for size in steps])
        found.append(
            {
                "row": row,
                "storage": storage,
                "axis": axis,
                "first": members[0],
                "last": members[-1],
                "exponent": grows,
                "allowed": allowed,
                "verdict": "met" if grows <= allowed else "missed",
            }
        )
    return found


def exponent(steps: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of the line that fits the logarithms of costs over those of sizes."""
    xs, ys = [math.log(size) for size in steps], [math.log(cost) for cost in costs]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


def lines(growth: dict[str, list[Point]]) -> list[Line]:
    """Return the lines of the table of fits."""
    return [
        (
            fit["row"],
            fit["storage"],
            fit["axis"],
            _shown(fit["first"]),
            _shown(fit["last"]),
            f"{fit['exponent']:+.3f}",
            f"{fit['allowed']:+.3f}",
            fit["verdict"],
        )
        for fit in growth["fits"]
    ]


def _shown(point: Point) -> str:
    return f"{point['milliseconds']:.3g} ms at {point['size']:,}"
