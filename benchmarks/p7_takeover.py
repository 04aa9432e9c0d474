from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from benchmarks.child import Child, say
from benchmarks.ledger import Ledger
from benchmarks.row import Figure, NotDurable, Row, Setting, Target
from perdure import App, Context, operation

_PATIENCE_SECONDS = 30.0


def measure(setting: Setting) -> list[Figure]:
    """Kill a worker within an operation and time until another one runs it, again and again."""
    folder = setting.path("p7")
    rounds = setting.scale(10, 3)
    samples: list[float] = []
    ledger = Ledger(folder / "ledger")
    workers: dict[int, Child] = {}
    try:
        _add_worker(workers, folder)
        for number in range(rounds):
            _add_worker(workers, folder)
            _start(folder, f"run-{number}")
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
        _figure(label.format("median"), median(samples), samples),
        _figure(label.format("longest"), max(samples), samples),
    ]


def _figure(label: str, value: float, samples: list[float]) -> Figure:
    return Figure(label=label, value=value, unit="s", targets=[Target(1.0)], samples=samples)


def _add_worker(workers: dict[int, Child], folder: Path) -> None:
    child = Child("p7_takeover", folder / "runs.db", folder / "ledger")
    workers[child.pid] = child
    child.hear()


def _start(folder: Path, run_id: str) -> None:
    async def start() -> None:
        app = _app(folder / "runs.db", None)
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


def _app(database: Path, ledger: Ledger | None) -> App:
    app = App(f"sqlite:///{database}")

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


def child(database: str, ledger_path: str) -> None:
    """Work until killed."""

    async def main() -> None:
        async with _app(Path(database), Ledger(Path(ledger_path))):
            say("ready")
            await asyncio.Event().wait()

    asyncio.run(main())


ROW = Row(
    number="P7",
    work="a worker dies",
    floor="",
    measure=measure,
)
