from __future__ import annotations

from typing import Any, Final

from perdure.effects.receipt import Move, Receipt
from perdure.effects.store import Settlement
from perdure.fence import Fence
from perdure.journal.store import NewRecord
from perdure.storage.postgres.approvals import PostgresApprovals
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.journal import RECORD_COLUMNS
from perdure.storage.postgres.lane import Lane
from perdure.storage.postgres.pieces import PIECE_COLUMNS
from perdure.storage.postgres.receipts import PostgresReceipts
from perdure.storage.rows import split_record

_SETTLEMENT_COLUMNS: Final = {
    "operation_key": "text",
    "effect_attempt": "bigint",
    "effect_generation": "bigint",
    "state": "text",
    "sources": "text",
    "answer": "bytea",
    "problem": "text",
    "stopped": "boolean",
    "risk": "boolean",
    "now": "double",
}


class PostgresBoundary(PostgresApprovals, PostgresReceipts):
    """Journal, inbox and receipts where they meet: what is written together or not at all."""

    def __init__(self, database: Database) -> None:
        PostgresApprovals.__init__(self, database)
        PostgresReceipts.__init__(self, database)
        columns = {**RECORD_COLUMNS, **_SETTLEMENT_COLUMNS}
        self._settling = Lane(database, "settle_records", columns, PIECE_COLUMNS)

    async def settle_record(
        self, fence: Fence, settlement: Settlement, record: NewRecord
    ) -> tuple[Receipt, bool]:
        """Move a receipt and write the record that goes with it, both or neither.

        Durable when it returns: receipt and record, fsynced, if the move landed.
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`; after a `StorageBusy`,
        nobody knows whether it was written.
        """
        wholes = await self._db.blobs.lift_rests(split_record(record))
        row = self._db.rows.record(fence, record, *wholes)
        row["input_piece"], row["payload_piece"] = map(self._db.rows.last, wholes)
        row.update(_settlement_row(self._db.rows.settlement(settlement, self._db.clock.now())))
        what = f"settle {record.invocation.step_id}/{record.invocation.sequence}"
        key = settlement.operation_key
        found = await self.pieces.keep(
            wholes, lambda more: self._settling.send(row, what, key=key, more=more)
        )
        if found is not None and found[0] is not None:
            return self._db.rows.receipt(found), True
        if await self.recorded_before(row):
            return await self.read_existing(key), True
        if found is None:
            raise self._db.fenced_off(fence.run_id)
        if settlement.move is Move.COMPLETE and settlement.stopped:
            await self.mark_duplicate(settlement)
        return await self.read_existing(key), False

    async def close_boundary(self) -> None:
        """Write what waits."""
        await self._settling.close()
        await self.close_journal()
        await self.close_receipts()


def _settlement_row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("operation_key", "state", "sources", "problem", "stopped", "risk", "now")
    return {
        **{name: row[name] for name in names},
        "answer": row["payload"],
        "effect_attempt": row["attempt"],
        "effect_generation": row["generation"],
    }
