from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.canonical import sha256_hex
from perdure.errors import JournalError, StorageCorrupt, StorageError
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, NewRecord
from perdure.storage.places import input_of, payload_of, place_of
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.lane import Lane
from perdure.storage.postgres.pieces import PIECE_COLUMNS, Pieces
from perdure.storage.rows import damaged, signed, split_record, unsigned

WHOLE_JOURNAL_PAYLOAD_BYTES: Final = 4096
"""The largest payload that comes along when a whole journal is read."""

RECORD_COLUMNS: Final = {
    "run_id": "text",
    "holder": "text",
    "generation": "bigint",
    "step_id": "text",
    "sequence": "bigint",
    "kind": "text",
    "handler_id": "text",
    "input_sha256": "bytea",
    "input_bytes": "bigint",
    "status": "text",
    "attempt": "bigint",
    "nested": "boolean",
    "started_at": "double",
    "finished_at": "double",
    "input_piece": "bytea",
    "input_packing": "bigint",
    "input_tail": "bytea",
    "payload_piece": "bytea",
    "payload_packing": "bigint",
    "payload_bytes": "bigint",
    "payload": "bytea",
}
"""The columns that every new record has."""


class PostgresJournal:
    """The journal of every run, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.pieces = Pieces(database)
        self._appending = Lane(database, "append_records", RECORD_COLUMNS, PIECE_COLUMNS)

    async def read_journal(self, run_id: str) -> Journal:
        """Return what the run has recorded, and the delays it has under way."""
        found = await self._db.read(
            "read_records", run_id=run_id, largest=WHOLE_JOURNAL_PAYLOAD_BYTES
        )
        journal = self._db.rows.journal
        rows = [journal(run_id, row) for row in found]
        timer = self._db.rows.timer
        timers = [timer(run_id, row) for row in await self._db.read("read_timers", run_id=run_id)]
        begun = {
            (step_id, unsigned(sequence)): operation_key
            for step_id, sequence, operation_key in await self._db.read("read_begun", run_id=run_id)
        }
        return Journal(rows, timers, begun)

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the payload of one record, of any size."""
        stored = await self._one("read_payload", run_id, step_id, sequence)
        place = payload_of(place_of(run_id, step_id, sequence))
        return await self._db.document(place, *stored)

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the exact input of one record.

        Raises `InputDigestMismatch` when the database no longer holds what was written.
        """
        row = await self._one("read_input", run_id, step_id, sequence)
        piece, packing, tail, *facts = row
        place = place_of(run_id, step_id, sequence)
        try:
            digest = self._db.rows.input_digest(run_id, facts)
            document = await self._db.document(input_of(place), piece, packing, tail)
        except StorageCorrupt as error:
            raise damaged(place, error) from error
        if sha256_hex(document) != digest.hex():
            raise damaged(place)
        return document

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        """Write a record under the fence, and end the delay of the same key.

        Durable when it returns: the record, fsynced.
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`; after a `StorageBusy`,
        nobody knows whether it was written.
        """
        wholes = await self._db.blobs.lift_rests(split_record(record))
        row = self._db.rows.record(fence, record, *wholes)
        row["input_piece"], row["payload_piece"] = map(self._db.rows.last, wholes)
        what = f"record {record.invocation.step_id}/{record.invocation.sequence}"
        written = await self.pieces.keep(
            wholes, lambda more: self._appending.send(row, what, more=more)
        )
        await self._check_written(fence, row, written)

    async def begin_timer(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        awaits: str | None = None,
    ) -> None:
        """Write that a delay or a wait has begun, under the fence.

        Durable when it returns: the wake-up time and the name that is awaited, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        row = self._db.rows.new_timer(fence, invocation, input_sha256, wake_at, awaits)
        what = f"begin_timer {invocation.step_id}/{invocation.sequence}"
        if not await self._db.write("begin_timer", row, what):
            raise self._db.fenced_off(fence.run_id)

    async def recorded_before(self, row: Mapping[str, Any]) -> bool:
        """Tell whether this very record was written already, by a try whose answer was lost."""
        names = ("run_id", "step_id", "sequence", "generation", "attempt")
        key = {name: row[name] for name in (*names, "started_at", "finished_at")}
        return await self._db.read("recorded_before", **key) == [(True,)]

    async def close_journal(self) -> None:
        """Write what waits."""
        await self._appending.close()

    async def _check_written(
        self, fence: Fence, row: Mapping[str, Any], written: tuple[Any, ...] | None
    ) -> None:
        if written == (True,):
            return
        if await self.recorded_before(row):
            return
        if written is None:
            raise self._db.fenced_off(fence.run_id)
        place = place_of(fence.run_id, row["step_id"], unsigned(row["sequence"]))
        raise StorageError(f"another record of {place} was written before this one")

    async def _one(self, name: str, run_id: str, step_id: str, sequence: int) -> tuple[Any, ...]:
        row = await self._db.read_row(
            name, run_id=run_id, step_id=step_id, sequence=signed(sequence)
        )
        if row is None:
            raise JournalError(f"the journal holds no {place_of(run_id, step_id, sequence)}")
        return row
