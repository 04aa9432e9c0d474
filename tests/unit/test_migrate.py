from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.errors import PerdureError, SchemaTooNew, StorageCorrupt
from perdure.storage.queries import load_migrations, load_queries
from perdure.storage.sqlite import migrate as migrations
from perdure.storage.sqlite.database import connect
from perdure.storage.sqlite.migrate import APPLICATION_ID, migrate

NEWEST = load_migrations("sqlite")[-1][0]


def bring_up(path: Path, probe: Callable[[str], None] = lambda point: None) -> None:
    connection = connect(path, 20)
    try:
        migrate(connection, str(path), probe)
    finally:
        connection.close()


def pragma(path: Path, name: str) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
    finally:
        connection.close()


def make(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_new_file_gets_every_migration_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    points: list[str] = []
    bring_up(path, points.append)
    assert points == [
        f"commit.{end} migrate {number}"
        for number, _ in load_migrations("sqlite")
        for end in ("begin", "done")
    ]
    assert pragma(path, "user_version") == NEWEST
    assert pragma(path, "application_id") == APPLICATION_ID
    before = path.read_bytes()
    bring_up(path, points.append)
    assert path.read_bytes() == before


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    bring_up(path)
    assert pragma(path, "user_version") == NEWEST


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    together = threading.Barrier(4)
    errors: list[Exception] = []
    done: list[str] = []

    def open_it() -> None:
        together.wait()
        try:
            bring_up(path, done.append)
        except (PerdureError, sqlite3.Error) as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert pragma(path, "user_version") == NEWEST


FOREIGN = {
    "table": ("CREATE TABLE theirs (a)",),
    "version": ("PRAGMA user_version = 1",),
    "application": ("PRAGMA application_id = 1",),
    "wal": ("PRAGMA journal_mode = WAL", "CREATE TABLE theirs (a)"),
    "emptied": ("CREATE TABLE theirs (a)", "DROP TABLE theirs"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_programs_database_is_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "theirs.db"
    make(path, *FOREIGN[kind])
    before = path.read_bytes()
    with pytest.raises(StorageCorrupt, match=r"theirs\.db is a database of another program"):
        bring_up(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["theirs.db"]


def test_what_is_no_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader,\n" * 200)
    before = path.read_bytes()
    with pytest.raises(StorageCorrupt, match="not a database that perdure can use"):
        bring_up(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    bring_up(path)
    make(path, f"PRAGMA user_version = {NEWEST + 1}")
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=f"version {NEWEST + 1} .* knows {NEWEST}; upgrade"):
        bring_up(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_version_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    bring_up(path)
    broken = (NEWEST + 1, "CREATE TABLE half (a);\nCREATE TABLE half (a);\n")
    monkeypatch.setattr(
        migrations, "load_migrations", lambda dialect: [*load_migrations(dialect), broken]
    )
    with pytest.raises(sqlite3.OperationalError, match="half already exists"):
        bring_up(path)
    assert pragma(path, "user_version") == NEWEST
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        make(path, "SELECT * FROM half")


def test_every_query_can_be_prepared(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    bring_up(path)
    connection = sqlite3.connect(path)

    class Anything(dict[str, object]):
        def __missing__(self, name: str) -> None:
            return None

    for statement in load_queries("sqlite").values():
        connection.execute(f"EXPLAIN {statement}", Anything())
    connection.close()
