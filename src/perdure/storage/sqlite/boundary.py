from __future__ import annotations

import sqlite3

from perdure.effects.receipt import Receipt
from perdure.effects.store import Settlement
from perdure.fence import Fence
from perdure.journal.store import NewRecord
from perdure.storage.sqlite.approvals import SqliteApprovals
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.receipts import SqliteReceipts


class SqliteBoundary(SqliteApprovals, SqliteReceipts):
    """Journal, inbox and receipts where they meet: what is written together or not at all."""

    def __init__(self, database: Database) -> None:
        SqliteApprovals.__init__(self, database)
        SqliteReceipts.__init__(self, database)

    async def settle_record(
        self, fence: Fence, settlement: Settlement, record: NewRecord
    ) -> tuple[Receipt, bool]:
        """Move a receipt and write the record that goes with it, both or neither.

        Durable when it returns: receipt and record, fsynced, if the move landed.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        append = await self.append(fence, record)

        def job(connection: sqlite3.Connection) -> tuple[Receipt, bool]:
            receipt, landed = self.settle(connection, settlement)
            if landed and not append(connection):
                raise _FencedOff
            return receipt, landed

        place = f"{record.invocation.step_id}/{record.invocation.sequence}"
        try:
            return await self._db.write(job, f"settle {place}")
        except _FencedOff:
            raise self._db.fenced_off(fence.run_id) from None


class _FencedOff(Exception):
    """Takes a job's writes back, because its run has another owner."""
