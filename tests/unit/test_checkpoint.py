from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.clock import SystemClock
from perdure.observe import Observer
from perdure.storage.sqlite.checkpoint import LOG_PAGES
from perdure.storage.sqlite.database import Database
from tests.harness import run, sql

PAGE_BYTES = 4096


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Database]:
    database = Database(folder / "runs.db", SystemClock(), Observer(), 20, lambda point: None)
    sql(folder, "CREATE TABLE IF NOT EXISTS filler (data BLOB)")
    try:
        yield database
    finally:
        await database.close()


async def fill(database: Database, writes: int, size: int) -> None:
    def job(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO filler VALUES (zeroblob(?))", (size,))

    for number in range(writes):
        await database.write(job, f"blob {number}")


def log_pages(folder: Path) -> float:
    return (folder / "runs.db-wal").stat().st_size / PAGE_BYTES


def folded(folder: Path) -> int:
    """Return how many rows a file has without its log."""
    (folder / "copy.db").write_bytes((folder / "runs.db").read_bytes())
    with sqlite3.connect(f"file:{folder / 'copy.db'}?immutable=1", uri=True) as copy:
        ((count,),) = copy.execute("SELECT count(*) FROM filler").fetchall()
    copy.close()
    return count


def test_the_log_is_folded_while_it_is_written_and_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as database:
            await fill(database, 800, 40_000)
            assert log_pages(tmp_path) < 2 * LOG_PAGES
            assert folded(tmp_path) >= 400

    run(main())


def test_a_reader_holds_the_folding_up_and_stops_no_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as database:
            await fill(database, 1, 10)
            reader = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM filler").fetchall() == [(1,)]
            await fill(database, 400, 40_000)
            held = log_pages(tmp_path)
            assert held > LOG_PAGES
            assert reader.execute("SELECT count(*) FROM filler").fetchall() == [(1,)]
            reader.execute("COMMIT")
            reader.close()
            await fill(database, 800, 40_000)
            assert log_pages(tmp_path) < held + 2 * LOG_PAGES
            assert folded(tmp_path) > 500

    run(main())


def test_the_loop_goes_on_while_the_log_is_folded(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as database:
            checkpointer = database._writer._checkpointer
            going = asyncio.Event()
            loop = asyncio.get_running_loop()
            fold = checkpointer.fold

            def slow_fold() -> None:
                asyncio.run_coroutine_threadsafe(_set(going), loop).result(20)
                fold()

            checkpointer.fold = slow_fold
            await fill(database, 400, 40_000)
            assert going.is_set()

    run(main())


async def _set(event: asyncio.Event) -> None:
    event.set()
