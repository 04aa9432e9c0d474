from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.canonical import sha256_hex
from perdure.errors import InputDigestMismatch, JournalError, StorageCorrupt, StorageError
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, NewRecord
from perdure.storage.pieces import Split, split
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.failures import PieceGone
from perdure.storage.postgres.lane import Lane
from perdure.storage.postgres.pieces import Pieces
from perdure.storage.rows import place_of, signed, unsigned

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
    "input_packing": "bigint",
    "input_tail": "bytea",
    "payload_packing": "bigint",
    "payload_bytes": "bigint",
    "payload": "bytea",
}
"""The columns that every new record has."""

_PIECE_COLUMNS: Final = {
    "piece_digest": "bytea",
    "piece_parent": "bytea",
    "piece_packing": "bigint",
    "piece_data": "bytea",
}
_MOST_TRIES: Final = 5


class PostgresJournal:
    """The journal of every run, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._pieces = Pieces(database)
        columns = {**RECORD_COLUMNS, "input_piece": "bytea"}
        self._appending = Lane(database, "append_records", columns, _PIECE_COLUMNS)

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
        packing, payload = await self._one("read_payload", run_id, step_id, sequence)
        return self._db.rows.payload(run_id, step_id, sequence, packing, payload)

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the exact input of one record.

        Raises `InputDigestMismatch` when the database no longer holds what was written.
        """
        row = await self._one("read_input", run_id, step_id, sequence)
        piece, packing, tail, digest = row
        rows = [] if piece is None else await self._db.read("read_pieces", piece=piece)
        try:
            parts = [self._db.rows.piece(*row) for row in rows]
            parts.append(self._db.rows.tail(run_id, step_id, sequence, packing, tail))
            document = b"".join(parts)
        except StorageCorrupt:
            document = None
        if document is None or sha256_hex(document) != digest.hex():
            raise InputDigestMismatch(
                f"the input of {place_of(run_id, step_id, sequence)} is damaged in the database;"
                " restore it from a backup"
            )
        return document

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        """Write a record under the fence, and end the delay of the same key.

        Durable when it returns: the record, fsynced.
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`; after a `StorageBusy`,
        nobody knows whether it was written.
        """
        whole = self.split(record)
        row = self._db.rows.record(fence, record, whole.tail)
        what = f"record {record.invocation.step_id}/{record.invocation.sequence}"
        size = len(row["payload"]) + len(row["input_tail"])
        for tried in range(1, _MOST_TRIES + 1):
            added = await self._pieces.missing(whole)
            row["input_piece"] = whole.newest[-1].digest if whole.newest else None
            more = {
                "piece_digest": [piece.digest for piece in added],
                "piece_parent": [piece.parent for piece in added],
                "piece_packing": [piece.packing for piece in added],
                "piece_data": [piece.data for piece in added],
            }
            size += sum(len(piece.data) for piece in added)
            try:
                written = await self._appending.send(row, what, more=more, size=size)
            except PieceGone:
                # It was erased with another run since it was last seen.
                self._pieces.forget()
                if tried == _MOST_TRIES:
                    raise
                continue
            self._pieces.remember(whole)
            return await self._check_written(fence, row, written)
        return None

    def split(self, record: NewRecord) -> Split:
        """Return the input of a record in pieces and a rest."""
        return split(record.invocation.input_json, record.cuts, record.beginnings)

    async def begin_timer(
        self, fence: Fence, invocation: Invocation, input_sha256: bytes, wake_at: float
    ) -> None:
        """Write that a delay has begun, under the fence.

        Durable when it returns: the wake-up time, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        row = self._db.rows.new_timer(fence, invocation, input_sha256, wake_at)
        what = f"begin_timer {invocation.step_id}/{invocation.sequence}"
        if not await self._db.write("begin_timer", row, what):
            raise self._db.fenced_off(fence.run_id)

    async def recorded_before(self, row: Mapping[str, Any]) -> bool:
        """Tell whether this very record was written already, by a try whose answer was lost."""
        names = ("run_id", "step_id", "sequence", "generation", "attempt", "input_sha256")
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
