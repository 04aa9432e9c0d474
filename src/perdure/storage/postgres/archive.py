from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure.engine.archive import RunArchive
from perdure.errors import InvalidRecord, StorageBusy, StorageError
from perdure.storage.archived import Arrival, taken, wholes_of
from perdure.storage.postgres.arrays import Column, columns_of
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.failures import PieceGone, has_no_room
from perdure.storage.postgres.hints import Hints
from perdure.storage.postgres.journal import RECORD_COLUMNS
from perdure.storage.postgres.pieces import PIECE_COLUMNS, Pieces

_MOST_TRIES: Final = 4
_WORKERS: Final = {"holder": "text", "worker": "text", "pid": "bigint", "claimed_at": "double"}
_ATTEMPTS: Final = {
    "generation": "bigint",
    "holder": "text",
    "claimed_at": "double",
    "ended_at": "double",
    "ending": "text",
    "executed": "bigint",
    "replayed": "bigint",
}
_TIMERS: Final = {
    "step_id": "text",
    "sequence": "bigint",
    "kind": "text",
    "handler_id": "text",
    "input_sha256": "bytea",
    "input": "bytea",
    "wake_at": "double",
    "awaits": "text",
}
_RECEIPTS: Final = {
    "operation_key": "text",
    "run_id": "text",
    "idempotency_key": "text",
    "target": "text",
    "ordinal": "bigint",
    "support": "text",
    "arguments_sha256": "bytea",
    "state": "text",
    "attempt": "bigint",
    "holder": "text",
    "generation": "bigint",
    "version": "bigint",
    "payload": "bytea",
    "problem": "text",
    "first_claimed_at": "double",
    "claimed_at": "double",
    "settled_at": "double",
    "settle_seconds": "double",
    "resend_after": "double",
    "lookups": "bigint",
    "lookup_at": "double",
    "lookup_holder": "text",
    "exhausted": "boolean",
    "earlier_unknown": "boolean",
    "residual_duplicate_risk": "boolean",
    "decided_by": "text",
    "decided_why": "text",
    "handler_id": "text",
}
_DECISIONS: Final = {
    "operation_key": "text",
    "version": "bigint",
    "attempt": "bigint",
    "decision": "text",
    "decided_by": "text",
    "decided_why": "text",
    "decided_at": "double",
}


class PostgresArchive:
    """Takes archived runs into one PostgreSQL schema."""

    hints: Hints

    def __init__(self, database: Database) -> None:
        self._db = database

    async def import_run(self, archive: RunArchive) -> bool:
        """Write all that an archive holds, unless there is a run of its id; tell which.

        Durable when it returns: the run, fsynced.
        If it raises: `RunConflict` for a receipt that is there as another one, or was erased, or
        `InvalidRecord` for numbers and texts that there is no room for (nothing was written), or a
        `StorageError`; after a `StorageBusy`, nobody knows whether it was written.
        """
        await self._db.note_key()
        wholes = await self._db.blobs.lift_rests(await asyncio.to_thread(wholes_of, archive))
        arrival = await asyncio.to_thread(Arrival, self._db.rows, archive, wholes)
        if arrival.run["queue"] is not None:
            await self._db.write("know_queue", arrival.run, "know_queue")
        for _ in range(_MOST_TRIES):
            pieces = await self._pieces(arrival)

            async def job(transaction: Transaction, again: bool) -> None:  # noqa: FBT001
                del again
                await self._write(transaction, archive, arrival, pieces)  # noqa: B023

            try:
                await self._db.transact(job, "import_run")
            except PieceGone:
                continue
            except _ThereError:
                return False
            except StorageError as error:
                if has_no_room(error):
                    raise InvalidRecord(f"no store has written such a run: {error}") from error
                raise
            self.hints.tell()
            return True
        raise StorageBusy("what the imported run shares with others was erased again and again")

    async def _pieces(self, arrival: Arrival) -> dict[str, Column]:
        """Return the pieces of a run that are not there yet, as far as is known, as columns."""
        # Of this import alone: what it notes as there is there once it is committed.
        pieces = Pieces(self._db)
        missing: dict[str, list[Any]] = {name: [] for name in PIECE_COLUMNS}
        for row, column, whole in arrival.documents:
            row[column] = self._db.rows.last(whole)
            for name, values in (await pieces.new([whole])).items():
                missing[name] += values
            pieces.remember([whole])
        return {name: Column(kind, missing[name]) for name, kind in PIECE_COLUMNS.items()}

    async def _write(
        self,
        transaction: Transaction,
        archive: RunArchive,
        arrival: Arrival,
        pieces: dict[str, Column],
    ) -> None:
        await transaction.run("import_worker", columns_of(_WORKERS, arrival.workers))
        await transaction.run("import_piece", pieces)
        if not await transaction.run("import_run", arrival.run):
            raise _ThereError
        for name, kinds, rows in (
            ("attempt", _ATTEMPTS, arrival.attempts),
            ("record", RECORD_COLUMNS, arrival.records),
            ("timer", _TIMERS, arrival.timers),
        ):
            run = {"run_id": arrival.run_id}
            await transaction.run(f"import_{name}", {**columns_of(kinds, rows), **run})
        for name, rows in (
            ("insert_checkpoint", arrival.checkpoints),
            ("import_message", arrival.messages),
            ("import_approval", arrival.approvals),
        ):
            for row in rows:
                await transaction.run(name, row)
        await self._write_receipts(transaction, archive, arrival)
        for row in arrival.buried:
            if await transaction.run("read_receipt", row):
                raise taken(row["operation_key"])
            await transaction.run("import_buried", row)
        await transaction.run("import_decision", columns_of(_DECISIONS, arrival.decisions))

    async def _write_receipts(
        self, transaction: Transaction, archive: RunArchive, arrival: Arrival
    ) -> None:
        columns = columns_of(_RECEIPTS, arrival.receipts)
        written = {key for (key,) in await transaction.run("import_receipt", columns)}
        for row, receipt in zip(arrival.receipts, archive.receipts, strict=True):
            key = receipt.operation_key
            if await transaction.run("read_tombstone", row):
                raise taken(key)
            if key not in written:
                ((*there, _),) = await transaction.run("read_receipt", row) or [(None,)]
                if not there or self._db.rows.receipt(there) != receipt:
                    raise taken(key)


class _ThereError(Exception):
    """Takes an import back, because there is a run of its id."""
