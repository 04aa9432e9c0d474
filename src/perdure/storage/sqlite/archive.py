from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from perdure.effects.receipt import Receipt
from perdure.engine.archive import RunArchive
from perdure.storage.archived import Arrival, taken, wholes_of
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.pieces import keep, lifted

_SIMPLE: Final = ("worker", "attempt", "record", "timer")


class SqliteArchive:
    """Takes archived runs into one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def import_run(self, archive: RunArchive) -> bool:
        """Write all that an archive holds, unless there is a run of its id; tell which.

        Durable when it returns: the run, fsynced.
        If it raises: `RunConflict` for a receipt that is there as another one, or was erased, or a
        `StorageError`, and nothing was written.
        """
        await self._db.note_key()
        wholes = await lifted(self._db, *await asyncio.to_thread(wholes_of, archive))
        arrival = await asyncio.to_thread(Arrival, self._db.rows, archive, wholes)

        def job(connection: sqlite3.Connection) -> bool:
            if self._db.run(connection, "read_run", arrival.run).fetchone() is not None:
                return False
            for row, column, whole in arrival.documents:
                row[column] = keep(connection, self._db.sql, self._db.rows, whole)
            if arrival.run["queue"] is not None:
                self._db.run(connection, "know_queue", arrival.run)
            self._db.run(connection, "import_run", arrival.run)
            for name in _SIMPLE:
                rows: Sequence[Any] = getattr(arrival, f"{name}s")
                connection.executemany(self._db.sql[f"import_{name}"], rows)
            connection.executemany(self._db.sql["insert_checkpoint"], arrival.checkpoints)
            connection.executemany(self._db.sql["import_message"], arrival.messages)
            connection.executemany(self._db.sql["import_approval"], arrival.approvals)
            for row, receipt in zip(arrival.receipts, archive.receipts, strict=True):
                self._import_receipt(connection, row, receipt)
            for row in arrival.buried:
                if self._db.run(connection, "read_receipt", row).fetchone() is not None:
                    raise taken(row["operation_key"])
                self._db.run(connection, "import_buried", row)
            connection.executemany(self._db.sql["import_decision"], arrival.decisions)
            return True

        return await self._db.write(job, "import_run")

    def _import_receipt(
        self, connection: sqlite3.Connection, row: dict[str, Any], receipt: Receipt
    ) -> None:
        erased = self._db.run(connection, "read_tombstone", row).fetchone() is not None
        if not erased and self._db.run(connection, "import_receipt", row).rowcount == 1:
            return
        there = None if erased else self._db.run(connection, "read_receipt", row).fetchone()
        if there is None or self._db.rows.receipt(there) != receipt:
            raise taken(receipt.operation_key)
