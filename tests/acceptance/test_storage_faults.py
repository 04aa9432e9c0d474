"""Files that may not be written, files of others, locks that are held: errors say what to do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure import StorageError
from perdure.errors import SchemaTooNew, StorageBusy, StorageCorrupt, StorageReadOnly
from tests.acceptance.children import note, notes, run, running, until
from tests.acceptance.fetching import OPERATIONS, RESULT_BYTES, app_in, fetched_times, finish

_NOBODY = 65534


# --- files that may not be written ---------------------------------------------------------------


def try_to_start(folder: Path, log: Path) -> None:
    """Start a run as a user who may not do everything, and write down the error."""
    with tempfile.TemporaryDirectory() as elsewhere:
        # Everything is imported while that is still allowed.
        app_in(Path(elsewhere)).run_sync("fetching", str(Path(elsewhere) / "log"))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    try:
        app_in(folder).run_sync("fetching", str(log), run_id="run-2")
    except StorageError as error:
        note(log, error=type(error).__name__, message=str(error))


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder of everybody's, with a database in which a run has ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "data").mkdir()
        run(folder, finish, folder / "data", folder / "first.log")
        (folder / "log").touch()
        (folder / "log").chmod(0o666)
        yield folder
        (folder / "data").chmod(0o777)


@pytest.mark.parametrize(
    ("target", "mode"),
    [("data/runs.db", 0o444), ("data", 0o555), ("data", 0o000)],
    ids=["file", "folder", "closed folder"],
)
def test_what_may_not_be_written_is_said_and_left_alone(
    public: Path, target: str, mode: int
) -> None:
    (public / "data").chmod(0o777)
    (public / "data" / "runs.db").chmod(0o666)
    (public / target).chmod(mode)
    before = _digest(public / "data" / "runs.db")
    run(public, try_to_start, public / "data", public / "log")
    (error,) = notes(public / "log")
    assert error["error"] == "StorageReadOnly"
    assert "must be writable by this user" in error["message"]
    assert _digest(public / "data" / "runs.db") == before
    (public / "data").chmod(0o777)
    (public / "data" / "runs.db").chmod(0o666)
    run(public, try_to_start, public / "data", public / "log")
    assert fetched_times(public / "log") == Counter(range(OPERATIONS))


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageReadOnly, match="nowhere does not exist"):
        app_in(tmp_path / "nowhere").run_sync("fetching", "log")


# --- files of somebody else ----------------------------------------------------------------------


def test_a_file_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    app_in(tmp_path).run_sync("fetching", str(log), run_id="run-1")
    (version,) = _pragma(tmp_path, "PRAGMA user_version")
    _pragma(tmp_path, "PRAGMA user_version = 99")
    before = _digest(tmp_path / "runs.db")
    with pytest.raises(SchemaTooNew, match=r"has schema version 99.*upgrade perdure"):
        app_in(tmp_path).run_sync("fetching", str(log), run_id="run-1")
    assert _digest(tmp_path / "runs.db") == before
    _pragma(tmp_path, f"PRAGMA user_version = {version}")
    app_in(tmp_path).run_sync("fetching", str(log), run_id="run-1")
    assert fetched_times(log) == Counter(range(OPERATIONS))


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
        other.execute("CREATE TABLE runs (theirs TEXT)")
        other.execute("INSERT INTO runs VALUES ('precious')")
        other.commit()
    before = _digest(tmp_path / "runs.db")
    with pytest.raises(StorageCorrupt, match="another program; give perdure a file of its own"):
        app_in(tmp_path).run_sync("fetching", "log")
    assert _digest(tmp_path / "runs.db") == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text("Dear diary, " * 100)
    before = _digest(tmp_path / "runs.db")
    with pytest.raises(StorageCorrupt, match=r"not a database.*check the path"):
        app_in(tmp_path).run_sync("fetching", "log")
    assert _digest(tmp_path / "runs.db") == before


# --- a lock that somebody holds ------------------------------------------------------------------


def hold_lock(folder: Path, release: Path) -> None:
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (folder / "held").touch()
        until(release.exists)
        connection.execute("ROLLBACK")
        (folder / "held").unlink()


def test_a_lock_held_for_seconds_delays_and_breaks_nothing(tmp_path: Path) -> None:
    log, release = tmp_path / "log", tmp_path / "release"

    async def main() -> int:
        async with app_in(tmp_path) as app:
            with running(tmp_path, hold_lock, tmp_path, release):
                while not (tmp_path / "held").exists():
                    await asyncio.sleep(0.01)
                starting = asyncio.create_task(app.start("fetching", str(log), run_id="run-1"))
                await asyncio.sleep(1)
                assert not starting.done()
                release.touch()
                return await (await starting).result()

    assert asyncio.run(main()) == OPERATIONS * RESULT_BYTES
    assert fetched_times(log) == Counter(range(OPERATIONS))


def test_a_lock_held_for_too_long_is_said_and_what_runs_waits_on(tmp_path: Path) -> None:
    log, release = tmp_path / "log", tmp_path / "release"

    async def main() -> None:
        async with app_in(tmp_path, busy_seconds=0.2) as app:
            first = await app.start("fetching", str(log), run_id="run-1")
            with running(tmp_path, hold_lock, tmp_path, release):
                while not (tmp_path / "held").exists():
                    await asyncio.sleep(0.01)
                with pytest.raises(StorageBusy, match="holds the database's write lock"):
                    await app.start("fetching", str(log), run_id="run-2")
                # Longer than the first run's operation waits for the lock at once.
                await asyncio.sleep(0.5)
                release.touch()
                await first.result()
            assert [row.run_id for row in await app.store.list_runs(state=None, limit=9)] == [
                "run-1"
            ]
            await (await app.start("fetching", str(log), run_id="run-2")).result()

    asyncio.run(main())
    assert fetched_times(log) == Counter(2 * list(range(OPERATIONS)))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pragma(folder: Path, statement: str) -> tuple[int, ...]:
    with closing(sqlite3.connect(folder / "runs.db")) as connection:
        row = connection.execute(statement).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return row or ()
