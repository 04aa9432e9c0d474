from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

from benchmarks.child import Child, say
from benchmarks.ledger import Ledger
from benchmarks.row import Figure, NotDurable, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE
from perdure import App, Context, operation

_STARTS_AT_ONCE = 8
_LONG_SECONDS = 0.7
"""Longer than two looks for dead workers."""

_BEYOND_LEASE_SECONDS = 17.0
"""Longer than a lease, which must be renewed for the operation to stay its worker's own."""


def measure(setting: Setting) -> list[Figure]:
    """Let two live processes start the same runs, and count from outside what ran twice."""
    database = setting.database("p14")
    starts = setting.scale(1000, 200)
    beyond = setting.scale(1, 0)
    ledger = Ledger(database.folder / "ledger")
    arguments = (database.url, ledger.path, starts, beyond)
    with (
        Child("p14_two_workers", *arguments) as one,
        Child("p14_two_workers", *arguments) as other,
    ):
        assert [one.hear(), other.hear()] == ["ready", "ready"]
        _go(ledger.path).touch()
        results = [one.hear(), other.hear()]
    calls = Counter(tuple(line[:2]) for line in ledger.lines())
    pids = {line[2] for line in ledger.lines()}
    ledger.close()
    if results != [starts, starts] or len(calls) != 2 * starts:
        raise NotDurable(f"{results} runs completed and {len(calls)} operations ran")
    if len(pids) != 2:
        raise RuntimeError("one of the two workers did nothing")
    twice = sum(calls.values()) - len(calls)
    return [
        Figure(
            label=f"two live workers, the same {starts} starts from each: started twice",
            value=twice,
            unit="",
            targets=[Target(0)],
        )
    ]


def _go(ledger: Path) -> Path:
    """Return the file whose appearance tells both workers to begin."""
    return ledger.with_name("go")


def child(url: str, ledger_path: str, starts: str, beyond: str) -> None:
    """Start every run, as the other process does at the same time, and wait for all results."""
    ledger = Ledger(Path(ledger_path))
    app = App(url)

    @operation(read_only=True)
    async def first(number: int) -> None:
        ledger.write("first", number, os.getpid())
        if number % 100 == 0 and beyond == "1":
            await asyncio.sleep(_BEYOND_LEASE_SECONDS)
        elif number % 10 == 0:
            await asyncio.sleep(_LONG_SECONDS)

    @operation(read_only=True)
    async def second(number: int) -> int:
        ledger.write("second", number, os.getpid())
        return number

    @app.run(version=1)
    async def work(context: Context, number: int) -> int:
        await context.call(first, number)
        return await context.call(second, number)

    turns = asyncio.Semaphore(_STARTS_AT_ONCE)

    async def one(number: int) -> int:
        async with turns:
            handle = await app.start(work, number, run_id=f"run-{number}")
        return await handle.result()

    async def main() -> None:
        async with app:
            say("ready")
            while not _go(ledger.path).exists():
                await asyncio.sleep(0.001)
            results = await asyncio.gather(*(one(number) for number in range(int(starts))))
            say(sum(result == number for number, result in enumerate(results)))
            await asyncio.Event().wait()

    asyncio.run(main())


ROW = Row(
    number="P14",
    work="two live workers",
    floor="",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
