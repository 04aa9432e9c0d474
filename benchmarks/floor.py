from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_RECYCLED_PAGES = 2200
"""More than two cycles of SQLite's automatic checkpoint."""

Entry = tuple[str, bytes, bytes]


class Floor:
    """The least that a durable write costs: one table, one connection, nothing around it.

    WAL with `synchronous=FULL`. The log has been through two checkpoints before anything is
    measured, so it is overwritten and no longer grows, as in a program that has run for a while.
    """

    def __init__(self, path: Path, entry: Entry) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE entries (number INTEGER PRIMARY KEY, key TEXT, input BLOB, output BLOB)"
        )
        for _ in range(_RECYCLED_PAGES):
            self.commit([entry])

    def commit(self, entries: Sequence[Entry]) -> None:
        """Write entries as one transaction, fsynced."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO entries (key, input, output) VALUES (?, ?, ?)", entries)
        connection.execute("COMMIT")

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
        self._connection.close()
