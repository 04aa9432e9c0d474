from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import SystemClock
from perdure.errors import EngineClosed, StorageBusy, StorageError
from perdure.observe import Observer
from perdure.storage.sqlite.database import Database
from tests.harness import run, sql, until

Job = Callable[[sqlite3.Connection], int]


class Written:
    """A database with a table of numbers, and the statements that its writer ran."""

    def __init__(self, folder: Path, busy_seconds: float) -> None:
        self.folder = folder
        self.points: list[str] = []
        path = folder / "runs.db"
        self.database = Database(path, SystemClock(), Observer(), busy_seconds, self.points.append)
        sql(folder, "CREATE TABLE IF NOT EXISTS numbers (number INTEGER UNIQUE)")
        self.statements: list[str] = []
        self.database._writing.set_trace_callback(self.statements.append)

    def use_thread(self, yes: bool) -> None:
        self.database._writer._commit_seconds = 1.0 if yes else 0.0

    async def write(self, number: int, job: Job | None = None) -> int:
        return await self.database.write(job or adding(number), f"number {number}")

    def numbers(self) -> list[int]:
        return [number for (number,) in sql(self.folder, "SELECT number FROM numbers")]


def adding(number: int) -> Job:
    def job(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        return number

    return job


@asynccontextmanager
async def written(folder: Path, busy_seconds: float = 20) -> AsyncIterator[Written]:
    it = Written(folder, busy_seconds)
    try:
        yield it
    finally:
        await it.database.close()


def lock(folder: Path) -> sqlite3.Connection:
    """Take the write lock, as another process would."""
    other = sqlite3.connect(folder / "runs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.parametrize("thread", [False, True])
def test_writes_that_are_ready_together_share_one_commit(tmp_path: Path, thread: bool) -> None:
    async def main() -> None:
        async with written(tmp_path) as it:
            it.use_thread(thread)
            assert await asyncio.gather(*map(it.write, range(10))) == [*range(10)]
            assert it.statements.count("COMMIT") == 1
            assert it.numbers() == [*range(10)]
            writes = [point for point in it.points if "number" in point]
            assert writes == [
                f"commit.{end} number {n}" for end in ("begin", "done") for n in range(10)
            ]

    run(main())


@pytest.mark.parametrize("thread", [False, True])
def test_a_failing_write_does_not_harm_its_neighbours(tmp_path: Path, thread: bool) -> None:
    def fail(connection: sqlite3.Connection) -> int:
        adding(99)(connection)
        raise ZeroDivisionError

    async def main() -> list[Any]:
        async with written(tmp_path) as it:
            it.use_thread(thread)
            jobs = [it.write(1), it.write(0, fail), it.write(1), it.write(2)]
            results = await asyncio.gather(*jobs, return_exceptions=True)
            assert it.numbers() == [1, 2]
            return results

    first, bug, twice, last = run(main())
    assert (first, last) == (1, 2)
    assert isinstance(bug, ZeroDivisionError)
    assert isinstance(twice, StorageError)
    assert "SQLITE_CONSTRAINT_UNIQUE" in str(twice)


def test_nothing_overtakes_what_the_thread_still_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with written(tmp_path) as it:
            other = lock(tmp_path)
            first = asyncio.create_task(it.write(1))
            while it.statements.count("BEGIN IMMEDIATE") < 9:  # the thread tries, and rests
                await asyncio.sleep(0)
            other.execute("ROLLBACK")
            other.close()
            assert await asyncio.gather(it.write(2), first) == [2, 1]
            assert it.numbers() == [1, 2]
            assert await it.write(3) == 3

    run(main())


def test_a_write_waits_for_another_process_without_stopping_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with written(tmp_path) as it:
            other = lock(tmp_path)
            writing = asyncio.create_task(it.write(1))
            turns = 0
            while "BEGIN IMMEDIATE" not in it.statements or turns < 100:
                turns += 1
                await asyncio.sleep(0)
            assert not writing.done()
            other.execute("ROLLBACK")
            other.close()
            assert await writing == 1

    run(main())


def test_a_write_that_waited_too_long_is_refused_and_not_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with written(tmp_path, busy_seconds=0.01) as it:
            other = lock(tmp_path)
            results = await asyncio.gather(it.write(1), it.write(2), return_exceptions=True)
            assert [*map(type, results)] == [StorageBusy, StorageBusy]
            other.execute("ROLLBACK")
            other.close()
            assert await it.write(3) == 3
            assert it.numbers() == [3]

    run(main())


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("turns", range(3))
def test_the_write_of_a_cancelled_caller_lands(tmp_path: Path, thread: bool, turns: int) -> None:
    async def main() -> None:
        async with written(tmp_path) as it:
            it.use_thread(thread)
            writing = asyncio.create_task(it.write(1))
            await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            await until(lambda: it.numbers() == [1])
            await asyncio.wait([writing])

    run(main())


def test_closing_commits_what_waits_and_refuses_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with written(tmp_path) as it:
            writing = asyncio.create_task(it.write(1))
            await asyncio.sleep(0)
        assert await writing == 1
        assert it.numbers() == [1]
        with pytest.raises(EngineClosed, match="the store is closed"):
            await it.write(2)

    run(main())


def test_closing_with_nothing_to_write_waits_for_no_lock(tmp_path: Path) -> None:
    async def main() -> None:
        async with written(tmp_path, busy_seconds=60):
            other = lock(tmp_path)
        other.close()

    run(main())
