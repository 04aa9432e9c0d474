from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.child import Child
from benchmarks.durability import ran_again
from benchmarks.ledger import Ledger
from benchmarks.measure import percentile
from benchmarks.soak.faults import Faults, Restart, Workers, rage
from benchmarks.soak.target import CountingTarget
from benchmarks.soak.worker import EFFECTS, app_of
from perdure import App, PerdureError, RunState, StorageError

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long the soak lasts and how hard it is.

    `runs` are under way at a time for each worker. `url` is an empty database. `kill_seconds` and
    `restart_seconds` are how far apart faults are on average.
    """

    url: str
    workers: int = 3
    runs: int = 64
    seconds: float = 600.0
    kill_seconds: float = 1.5
    restart_seconds: float = 30.0
    restart: Restart | None = None
    seed: int = 7


@dataclass
class Report:
    """What happened, and what of it was wrong."""

    completed: int = 0
    effects: int = 0
    seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Say it, a line each."""
        told = [
            f"runs completed: {self.completed:,}, effects applied: {self.effects:,}",
            f"faults: {_counts(self.faults)}; the target heard: {_counts(self.heard)}",
        ]
        if self.seconds:
            longest = percentile(self.seconds, 0.99), max(self.seconds)
            told.append(
                f"a run took {median(self.seconds):.2f} s, p99 {longest[0]:.2f} s,"
                f" longest {longest[1]:.2f} s"
            )
        return [*told, *(f"WRONG: {what}" for what in self.wrong[:20])]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items())) or "none"


def soak(plan: Plan) -> Report:
    """Let workers work while they are killed; judge what their target and their runs say."""
    with tempfile.TemporaryDirectory(prefix="perdure-soak-") as name:
        return asyncio.run(_soak(plan, Path(name)))


async def _soak(plan: Plan, folder: Path) -> Report:
    chance = random.Random(plan.seed)
    target, report = CountingTarget(chance), Report()
    port = await target.open()
    log = folder / "workers.log"
    ledger = Ledger(folder / "ledger")

    def start() -> Child:
        given = (plan.url, port, ledger.path, plan.runs)
        return Child("soak.worker", *given, errors=log)

    workers = Workers(start)
    app = app_of(plan.url)
    try:
        async with app.connect():
            await _work(plan, app, workers, chance, report)
            report.wrong += await _unended(app)
    finally:
        workers.end()
        await target.close()
        ledger.close()
    report.heard = target.heard
    report.effects = sum(target.applied.values())
    report.wrong += [*_miscounted(target, report), *_repeated(ledger)]
    if workers.died:
        said = log.read_text(errors="replace")[-2000:]
        report.wrong.append(f"{workers.died} workers ended by themselves: {said}")
    return report


async def _work(
    plan: Plan, app: App, workers: Workers, chance: random.Random, report: Report
) -> None:
    """Keep as many runs under way as there are to be, then let the last ones end in peace."""
    numbers = itertools.count()
    ends_at = time.monotonic() + plan.seconds
    workers.fill(plan.workers)
    faults = Faults(plan.workers, plan.kill_seconds, plan.restart_seconds, plan.restart)

    async def one_after_another() -> None:
        while time.monotonic() < ends_at:
            run_id = f"run-{next(numbers)}"
            began = time.monotonic()
            returned = await _insist(app, run_id)
            report.seconds.append(time.monotonic() - began)
            report.completed += 1
            if returned != EFFECTS:
                report.wrong.append(f"{run_id} returned {returned}")

    going = [asyncio.create_task(one_after_another()) for _ in range(plan.workers * plan.runs)]
    await rage(faults, plan.seconds, workers, chance, report.faults)
    workers.fill(plan.workers)
    _, late = await asyncio.wait(going, timeout=_PATIENCE_SECONDS)
    for task in late:
        task.cancel()
    ended = await asyncio.gather(*going, return_exceptions=True)
    report.wrong += [f"{type(error).__name__}: {error}" for error in ended if error is not None]


async def _insist(app: App, run_id: str) -> int:
    """Start a run and wait for its result, for as long as the store cannot be reached."""
    while True:
        try:
            handle = await app.start("shopping", run_id=run_id)
            return await handle.result()
        except StorageError as error:
            print(f"{run_id}: {error}", file=sys.stderr)
            await asyncio.sleep(0.2)
        except PerdureError as error:
            raise RuntimeError(f"{run_id}: {error}") from error


def _miscounted(target: CountingTarget, report: Report) -> Iterable[str]:
    twice = [key for key, count in target.applied.items() if count != 1]
    if twice:
        yield f"{len(twice)} effects were applied more than once, such as {twice[0]}"
    if len(target.applied) != EFFECTS * report.completed:
        expected = EFFECTS * report.completed
        yield f"{len(target.applied)} effects were applied, of {expected}"


def _repeated(ledger: Ledger) -> Iterable[str]:
    again = ran_again(ledger.lines())
    if again:
        yield f"{len(again)} operations ran again after they were recorded, such as {again[0]}"


async def _unended(app: App) -> list[str]:
    rows = [
        row
        for state in RunState
        if state is not RunState.COMPLETED
        for row in await app.list(state=state)
    ]
    return [f"{row.run_id} is {row.state.value}" for row in rows]
