from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.engine.retention import BlobsFound, Expiry
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.erasure import Budget, SqliteErasure
from perdure.storage.sqlite.sessions import erase_messages

_ROWS: Final = 200
_RUNS: Final = 50
_PAUSE_SECONDS: Final = 0.005
"""How long another process has between two transactions to get the write lock."""

_SIMPLE: Final = ("receipts", "tombstones", "audit", "workers")
_WHY: Final = {"by": "retention", "why": "it was over for longer than runs are kept"}


class SqliteRetention(SqliteErasure):
    """Lets go of what is over for long enough."""

    def __init__(self, database: Database) -> None:
        SqliteErasure.__init__(self, database)

    async def count_expired(self, expiry: Expiry) -> Mapping[str, int]:
        """Return how much of each class has expired."""
        return await asyncio.to_thread(self._count_expired, expiry)

    def _count_expired(self, expiry: Expiry) -> Mapping[str, int]:
        with self._db.apart() as connection:
            return {
                name: self._db.run(
                    connection, f"count_{name}_expired", {"before": before}
                ).fetchone()[0]
                for name, before in msgspec.structs.asdict(expiry).items()
            }

    async def holds_blobs(self) -> bool:
        """Return whether large values stand in a blob store; reads all rows where none does."""
        return await asyncio.to_thread(self._holds_blobs)

    def _holds_blobs(self) -> bool:
        with self._db.apart() as connection:
            return bool(self._db.run(connection, "holds_blobs", {}).fetchone()[0])

    async def look_for_blobs(self) -> BlobsFound:
        """Look for some of the blobs that rows need, in the blob store that was given."""
        return await self._db.blobs.look(lambda limit: asyncio.to_thread(self._newest_blobs, limit))

    def _newest_blobs(self, limit: int) -> list[bytes]:
        with self._db.apart() as connection:
            found = self._db.run(connection, "newest_blobs", {"limit": limit})
            return [name for (name,) in found]

    async def collect_some(self, expiry: Expiry) -> Mapping[str, int]:
        """Delete some of what has expired, in one transaction of bounded size.

        Durable when it returns: the deletions, fsynced.
        """
        await asyncio.sleep(_PAUSE_SECONDS)
        gone = await self._db.write(lambda connection: self._collect(connection, expiry), "collect")
        await self._db.blobs.sweep()
        return gone

    def _collect(self, connection: sqlite3.Connection, expiry: Expiry) -> Mapping[str, int]:
        budget = Budget()
        gone = {"runs": self._collect_runs(connection, expiry.runs, budget)}
        gone["parts"] = budget.taken
        for name in _SIMPLE:
            row = {"before": getattr(expiry, name), "limit": 0 if budget.spent else _ROWS}
            gone[name] = self._db.run(connection, f"collect_{name}", row).rowcount
            budget.taken += gone[name]
        row = {"before": expiry.sessions, "limit": 0 if budget.spent else _RUNS}
        gone["sessions"] = self._db.run(connection, "collect_sessions", row).rowcount
        gone["parts"] += 0 if budget.spent else erase_messages(self._db, connection)
        return gone

    def _collect_runs(
        self, connection: sqlite3.Connection, before: float | None, budget: Budget
    ) -> int:
        row: dict[str, Any] = {"before": before, "limit": _RUNS}
        gone = 0
        for number, run_id, *pieces in self._db.run(connection, "expired_runs", row).fetchall():
            if budget.spent:
                break
            found = dict(zip(("input_piece", "output_piece"), pieces, strict=True))
            found = {"run_number": number, "run_id": run_id, **found}
            self._db.run(connection, "mark_erased", {**_WHY, **found, "now": self._db.clock.now()})
            if self.erase_parts(connection, found, budget):
                break
            self._db.run(connection, "forget_attempts", found)
            self._db.run(connection, "forget_run", found)
            budget.taken += 1
            gone += 1
        return gone
