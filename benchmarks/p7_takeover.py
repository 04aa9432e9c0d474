from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from benchmarks.child import Child, say
from benchmarks.ledger import Ledger
from benchmarks.row import Database, Figure, NotDurable, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE
from perdure import App, Context, operation

_PATIENCE_SECONDS = 30.0


def measure(setting: Setting) -> list[Figure]:
    """Kill a worker within an operation and time until another one runs it, again and again."""
    database = setting.database("p7")
    rounds = setting.scale(10, 3)
    samples: list[float] = []
    ledger = Ledger(database.folder / "ledger")
    workers: dict[int, Child] = {}
    try:
        _add_worker(workers, database)
        for number in range(rounds):
            _add_worker(workers, database)
            _start(database.url, f"run-{number}")
            first = _wait_for(ledger, f"run-{number}", 1)
            time.sleep(0.3)
            workers.pop(int(first[2])).kill()
            killed_at = time.monotonic()
            second = _wait_for(ledger, f"run-{number}", 2)
            samples.append(float(second[3]) - killed_at)
    finally:
        for child in workers.values():
            child.kill()
    again = [line for line in ledger.lines() if line[0] == "before"]
    ledger.close()
    if len(again) != rounds:
        raise NotDurable(f"{len(again) - rounds} completed operations ran again")
    label = f"SIGKILL within an operation until another worker runs it, {{}} of {rounds}"
    return [
        _figure("median", label, median(samples), samples),
        _figure("longest", label, max(samples), samples),
    ]


def _figure(name: str, label: str, value: float, samples: list[float]) -> Figure:
    return Figure(
        label=label.format(name),
        value=value,
        unit="s",
        targets=[Target(1.0)],
        name=name,
        samples=samples,
    )


def _add_worker(workers: dict[int, Child], database: Database) -> None:
    child = Child("p7_takeover", database.url, database.folder / "ledger")
    workers[child.pid] = child
    child.hear()


def _start(url: str, run_id: str) -> None:
    async def start() -> None:
        app = _app(url, None)
        async with app.connect():
            await app.start("work", run_id=run_id)

    asyncio.run(start())


def _wait_for(ledger: Ledger, run_id: str, count: int) -> list[str]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = [line for line in ledger.lines() if line[:2] == ["within", run_id]]
        if len(found) >= count:
            return found[count - 1]
        time.sleep(0.002)
    raise TimeoutError(f"{run_id} was not taken over within {_PATIENCE_SECONDS:.0f} s")


def _app(url: str, ledger: Ledger | None) -> App:
    app = App(url)

    @operation(read_only=True)
    async def before(run_id: str) -> None:
        assert ledger is not None
        ledger.write("before", run_id)

    @operation(read_only=True)
    async def within(run_id: str) -> None:
        assert ledger is not None
        ledger.write("within", run_id, os.getpid(), time.monotonic())
        await asyncio.Event().wait()

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(before, context.run_id)
        await context.call(within, context.run_id)

    return app


def child(url: str, ledger_path: str) -> None:
    """Work until killed."""

    async def main() -> None:
        async with _app(url, Ledger(Path(ledger_path))):
            say("ready")
            await asyncio.Event().wait()

    asyncio.run(main())


ROW = Row(
    number="P7",
    work="a worker dies",
    floor="",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
