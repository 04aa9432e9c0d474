from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.child import Child
from benchmarks.durability import ran_again
from benchmarks.ledger import Ledger
from benchmarks.measure import percentile
from benchmarks.soak.faults import Faults, Restart, SoakFailed, Workers, rage
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
    """What happened, and what of it was wrong; `failed` is why it was cut short, if it was."""

    completed: int = 0
    effects: int = 0
    seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failed: str | None = None

    @property
    def code(self) -> int:
        """What the command returns."""
        return int(bool(self.wrong) or self.failed is not None)

    def lines(self) -> list[str]:
        """Say it, a line each."""
        if self.failed is not None:
            return [f"FAILED after {self.completed:,} runs: {self.failed}"]
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
    try:
        await _watched(plan, workers, chance, report)
    finally:
        workers.end()
        await target.close()
        ledger.close()
    report.heard = target.heard
    report.effects = sum(target.applied.values())
    if report.failed is None:
        report.wrong += [*_miscounted(target, report), *_repeated(ledger)]
        if workers.died:
            said = log.read_text(errors="replace")[-2000:]
            report.wrong.append(f"{workers.died} workers ended by themselves: {said}")
    return report


async def _watched(plan: Plan, workers: Workers, chance: random.Random, report: Report) -> None:
    """Let the workers work and look at what their runs came to, or say why that cannot be."""
    app = app_of(plan.url)
    try:
        async with app.connect():
            try:
                await _work(plan, app, workers, chance, report)
                report.wrong += await _unended(app)
            except SoakFailed as failed:
                report.failed = str(failed)
    except StorageError as error:
        # Where the server is gone, this comes of closing and says less than why.
        report.failed = report.failed or str(error)


async def _work(
    plan: Plan, app: App, workers: Workers, chance: random.Random, report: Report
) -> None:
    """Keep as many runs under way as there are to be, then let the last ones end in peace.

    Raises `SoakFailed`, with nothing left under way.
    """
    numbers = itertools.count()
    ends_at = time.monotonic() + plan.seconds
    workers.fill(plan.workers)
    faults = Faults(plan.workers, plan.kill_seconds, plan.restart_seconds, plan.restart)

    async def one_after_another() -> None:
        while time.monotonic() < ends_at:
            run_id = f"run-{next(numbers)}"
            began = time.monotonic()
            returned = await _insist(app, run_id, report)
            report.seconds.append(time.monotonic() - began)
            report.completed += 1
            if returned != EFFECTS:
                report.wrong.append(f"{run_id} returned {returned}")

    async def raging() -> None:
        await rage(faults, plan.seconds, workers, chance, report.faults)
        workers.fill(plan.workers)

    going = [asyncio.create_task(one_after_another()) for _ in range(plan.workers * plan.runs)]
    await _first_failure([asyncio.create_task(raging()), *going], plan.seconds + _PATIENCE_SECONDS)


async def _first_failure(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait for all of some tasks, and raise what the first one raises; end the others then.

    Raises `SoakFailed` for those that take longer than so many seconds.
    """
    try:
        done, late = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        # Looked at, so that nobody prints them: the first one is told below.
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    if late:
        raise SoakFailed(
            f"{len(late)} runs had not ended {_PATIENCE_SECONDS:.0f} s after the last fault"
        )


async def _insist(app: App, run_id: str, report: Report) -> int:
    """Start a run and wait for its result, for as long as the store cannot be reached.

    Raises `SoakFailed` for a run that comes to something else.
    """
    while True:
        try:
            handle = await app.start("shopping", run_id=run_id)
            return await handle.result()
        except StorageError:
            report.faults["store away"] += 1
            await asyncio.sleep(0.2)
        except PerdureError as error:
            raise SoakFailed(f"{run_id} came to something else: {error}") from error


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
