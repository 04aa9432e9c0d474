from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from perdure.engine.health import StoreFault, StoreReport
from perdure.storage.sqlite.database import Database

_WAL_LIMIT_BYTES: Final = 256 * 1024 * 1024
_FREE_LIMIT_BYTES: Final = 256 * 1024 * 1024
_SYNCHRONOUS: Final = ("off", "normal", "full", "extra")
_SOUND: Final = "ok"


class SqliteHealth:
    """Looks a SQLite file over: damage, settings, and room to grow."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def examine(self) -> StoreReport:
        """Check the whole file for damage and for what will soon stop it; reads all of it."""
        return await asyncio.to_thread(self._examine)

    def _examine(self) -> StoreReport:
        path = self._db.path
        with self._db.apart() as connection:
            page_bytes = int(_pragma(connection, "page_size"))
            synchronous = int(_pragma(connection, "synchronous"))
            facts: dict[str, str | int] = {
                "file": str(path),
                "integrity": str(_pragma(connection, "quick_check(1)")),
                "journal_mode": str(_pragma(connection, "journal_mode")),
                "synchronous": _SYNCHRONOUS[synchronous],
                "file_bytes": page_bytes * int(_pragma(connection, "page_count")),
                "unused_bytes": page_bytes * int(_pragma(connection, "freelist_count")),
            }
            if isinstance(path, Path):
                log = path.with_name(f"{path.name}-wal")
                facts["wal_bytes"] = log.stat().st_size if log.exists() else 0
                facts["disk_free_bytes"] = shutil.disk_usage(path.parent).free
            version = int(_pragma(connection, "user_version"))
        return StoreReport(f"SQLite {sqlite3.sqlite_version}", version, facts, [*_faults(facts)])


def _faults(facts: Mapping[str, Any]) -> Iterator[StoreFault]:
    if facts["integrity"] != _SOUND:
        yield StoreFault(
            "integrity",
            f"the file is damaged ({facts['integrity']}): stop the workers and restore it from a"
            " backup",
        )
    if "wal_bytes" not in facts:
        return  # in memory
    if facts["journal_mode"] != "wal":
        yield StoreFault(
            "journal_mode",
            f"the journal mode is {facts['journal_mode']!r}, not 'wal': move the file to a local"
            " disk, which SQLite's log needs",
        )
    if facts["wal_bytes"] > _WAL_LIMIT_BYTES:
        yield StoreFault(
            "wal_size",
            f"the log beside the file has {facts['wal_bytes']} bytes, because some program keeps a"
            " read transaction open: end that program",
        )
    if facts["disk_free_bytes"] < _FREE_LIMIT_BYTES:
        yield StoreFault(
            "disk_space",
            f"the disk has {facts['disk_free_bytes']} bytes left: make room before runs stop",
        )


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
