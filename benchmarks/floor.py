from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.storages import file_of, is_file

_RECYCLED_PAGES = 2200
"""More than two cycles of SQLite's automatic checkpoint."""

_WARMING_COMMITS = 500

Entry = tuple[str, bytes, bytes]


class _Place(Protocol):
    """One table behind one connection."""

    def commit(self, entries: Sequence[Entry]) -> None: ...
    def close(self) -> None: ...


class Floor:
    """The least that a durable write costs: one table, one connection, nothing around it."""

    def __init__(self, place: _Place, entry: Entry, warming: int) -> None:
        self.commit = place.commit
        self._place = place
        for _ in range(warming):
            place.commit([entry])

    @classmethod
    def beside(cls, url: str, entry: Entry) -> Floor:
        """Return the floor of the storage that a URL names.

        SQLite: a file beside it, in WAL with `synchronous=FULL`. The log has been through two
        checkpoints before anything is measured, so it is overwritten and no longer grows, as in a
        program that has run for a while. PostgreSQL: a table in the same database.
        """
        if not is_file(url):
            return cls(_Server(url), entry, _WARMING_COMMITS)
        pages = 1 + sum(map(len, entry)) // 4096
        return cls(_File(file_of(url).with_name("floor.db")), entry, 1 + _RECYCLED_PAGES // pages)

    def seconds(self, commits: int, entries: Sequence[Entry]) -> float:
        """Return how long so many commits of these entries take."""
        began = time.perf_counter()
        for _ in range(commits):
            self.commit(entries)
        return time.perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._place.close()


class _File:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE entries (number INTEGER PRIMARY KEY, key TEXT, input BLOB, output BLOB)"
        )

    def commit(self, entries: Sequence[Entry]) -> None:
        """Write entries as one transaction, fsynced."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO entries (key, input, output) VALUES (?, ?, ?)", entries)
        connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class _Server:
    """One round trip a commit: a statement alone commits itself, many go through a pipeline."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection: Any = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute(
            "CREATE TABLE floor (number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " key TEXT, input BYTEA, output BYTEA)"
        )
        self._cursor = self._connection.cursor()

    def commit(self, entries: Sequence[Entry]) -> None:
        """Write entries as one transaction, fsynced."""
        statement = "INSERT INTO floor (key, input, output) VALUES (%s, %s, %s)"
        if len(entries) == 1:
            self._cursor.execute(statement, entries[0])
        else:
            self._cursor.executemany(statement, entries)

    def close(self) -> None:
        self._connection.close()
