"""A run of many operations with large results, each of which is counted outside."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from perdure import App, Context, WorkerOptions, operation
from tests.acceptance.children import note, notes

OPERATIONS = 40
RESULT_BYTES = 20_000


def app_in(folder: Path, *, busy_seconds: float = 60.0, lease_seconds: float = 15.0) -> App:
    """Return an App in a folder whose runs have large results, and write a line for each."""
    app = App(
        f"sqlite:///{folder}/runs.db",
        busy_seconds=busy_seconds,
        worker=WorkerOptions(lease_seconds=lease_seconds),
    )

    @operation(read_only=True)
    async def fetch(log: str, number: int) -> str:
        note(Path(log), fetched=number)
        return os.urandom(RESULT_BYTES // 2).hex()

    @app.run(version=1)
    async def fetching(context: Context, log: str) -> int:
        pages = [await context.call(fetch, log, number) for number in range(OPERATIONS)]
        return sum(len(page) for page in pages)

    async def buy(log: str, number: int) -> str:
        note(Path(log), fetched=number)
        return os.urandom(RESULT_BYTES // 2).hex()

    @app.run(version=1)
    async def buying(context: Context, log: str) -> int:
        pages = [await context.call(buy, log, number) for number in range(OPERATIONS)]
        return sum(len(page) for page in pages)

    @app.run(version=1)
    async def storing(context: Context, page: str) -> None:
        raise AssertionError("there was no room to start this")

    return app


def fetched_times(log: Path) -> Counter[int]:
    return Counter(line["fetched"] for line in notes(log) if "fetched" in line)


def finish(folder: Path, log: Path) -> None:
    app = app_in(folder)
    assert app.run_sync("fetching", str(log), run_id="run-1") == OPERATIONS * RESULT_BYTES
