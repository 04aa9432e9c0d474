from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median

from benchmarks.measure import RUNS, a_second, in_milliseconds, percentile
from benchmarks.on_temporal.runs import EmbeddedRuns, Runs
from benchmarks.on_temporal.server import server
from benchmarks.on_temporal.sidecar import Sidecar
from benchmarks.on_temporal.use import Use, connect
from benchmarks.on_temporal.workflows import Inside, Outside, Plain, PlainEach
from benchmarks.row import Figure, Row, Setting
from benchmarks.storages import POSTGRES, SQLITE

_AT_ONCE = {16: 4, 64: 1}
"""How many sequences are performed at once, and of how many operations each of them is."""
_BUDGET_SECONDS = 40.0
"""After how long no further round is begun: a server on a slow disk takes seconds for each rate."""


@dataclass
class _Taken:
    """What was measured of one use: a list a round."""

    sequences: list[list[float]] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    singles: list[float] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)
    events: float = 0.0

    def medians(self) -> list[float]:
        return [median(sequence) for sequence in self.sequences]

    def p99(self) -> float:
        return percentile([second for sequence in self.sequences for second in sequence], 0.99)


def measure(setting: Setting) -> list[Figure]:
    """Have the same operations performed in each way on one server, in turn."""
    with server(setting.path("t1-server") / "server.db") as address:
        return asyncio.run(_measure(setting, address))


async def _measure(setting: Setting, address: str) -> list[Figure]:
    operations, rounds = setting.scale(10, 5), setting.scale(RUNS, 1)
    at_once = [*_AT_ONCE][: setting.scale(len(_AT_ONCE), 1)]
    client = await connect(address)
    store = setting.database("t1-embedded").url
    runs = [
        Runs(client, address, setting.database("t1-runs").url),
        EmbeddedRuns(client, address, store),
    ]
    uses: list[Use] = [Plain(client, address), PlainEach(client, address), *runs]
    if setting.storage.name == SQLITE:  # these have no store
        sidecar = Sidecar(client, address, setting.path("t1-sidecar"))
        uses[2:2] = [Inside(client, address), Outside(client, address), sidecar]
    taken = {use: _Taken() for use in uses}
    async with AsyncExitStack() as stack:
        for use in uses:
            await stack.enter_async_context(use.stack)
            await use.open()
            taken[use].events = await use.events(operations)
        began = time.perf_counter()
        for number in range(rounds):
            if number and time.perf_counter() - began > _BUDGET_SECONDS:
                break
            for use in uses:
                gc.collect()
                await _take(use, taken[use], operations, at_once)
    return _figures(taken)


async def _take(use: Use, taken: _Taken, operations: int, at_once: Sequence[int]) -> None:
    taken.sequences.append(await use.sequence(use.fresh(), operations))
    if isinstance(use, EmbeddedRuns):
        taken.singles.append(await use.single(use.fresh()))
        taken.woken.append(await use.wake(use.fresh()))
    for number in at_once:
        taken.rates[number].append(await use.rate(number, _AT_ONCE[number]))


def _figures(taken: dict[Use, _Taken]) -> list[Figure]:
    plain, plain_each, *_ = taken.values()
    figures: list[Figure] = []
    for use, its in taken.items():
        figures += _of_use(use.label, its, plain)
        if its.singles:
            figures += _of_runs(its, plain_each)
    return figures


def _of_use(label: str, its: _Taken, plain: _Taken) -> list[Figure]:
    return [
        in_milliseconds(f"{label}, one after another, each", its.medians(), plain.medians(), []),
        in_milliseconds("the same, p99", [its.p99()], [plain.p99()], []),
        *(
            a_second(
                f"the same, {at_once} times {_AT_ONCE[at_once]} at once",
                rates,
                plain.rates[at_once],
                [],
            )
            for at_once, rates in its.rates.items()
        ),
        Figure(
            label="the same, events of history for each",
            value=its.events,
            unit="",
            floor=plain.events,
            ratio=its.events / plain.events,
        ),
    ]


def _of_runs(its: _Taken, plain_each: _Taken) -> list[Figure]:
    woken = [seconds * 1000 for seconds in its.woken]
    return [
        in_milliseconds(
            "the same, a run of one operation, start to result",
            its.singles,
            plain_each.medians(),
            [],
        ),
        Figure(
            label="the same, a run that waits, from its message to its result",
            value=median(woken),
            unit="ms",
            samples=woken,
        ),
    ]


ROW = Row(
    number="T1",
    work="the same operations on Temporal, in each way",
    floor="plain activities, one after another in one workflow",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
