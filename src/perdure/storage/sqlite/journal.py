from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from perdure.canonical import sha256_hex
from perdure.errors import JournalError, StorageCorrupt
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, NewRecord
from perdure.storage.places import input_of, payload_of, place_of
from perdure.storage.rows import ENDS_WAIT, damaged, signed, split_record, unsigned
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.pieces import keep, lifted

WHOLE_JOURNAL_PAYLOAD_BYTES: Final = 4096
"""The largest payload that comes along when a whole journal is read."""


class SqliteJournal:
    """The journal of every run, in one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read_journal(self, run_id: str) -> Journal:
        """Return what the run has recorded, and the delays it has under way."""
        return await asyncio.to_thread(self._read_journal, run_id)

    def _read_journal(self, run_id: str) -> Journal:
        key = {"run_id": run_id, "largest": WHOLE_JOURNAL_PAYLOAD_BYTES}
        with self._db.apart() as connection:
            journal = self._db.rows.journal
            rows = [journal(run_id, row) for row in self._db.run(connection, "read_records", key)]
            timer = self._db.rows.timer
            timers = [timer(run_id, row) for row in self._db.run(connection, "read_timers", key)]
            begun = {
                (step_id, unsigned(sequence)): operation_key
                for step_id, sequence, operation_key in self._db.run(connection, "read_begun", key)
            }
        return Journal(rows, timers, begun)

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the payload of one record, of any size."""
        stored = self._one("read_payload", run_id, step_id, sequence)
        place = payload_of(place_of(run_id, step_id, sequence))
        return await self._db.document(place, *stored)

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the exact input of one record.

        Raises `InputDigestMismatch` when the file no longer holds what was written.
        """
        piece, packing, tail, *facts = self._one("read_input", run_id, step_id, sequence)
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
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        invocation = record.invocation
        what = f"record {invocation.step_id}/{invocation.sequence}"
        await self._fenced(fence, await self.append(fence, record), what)

    async def append(self, fence: Fence, record: NewRecord) -> Callable[[sqlite3.Connection], bool]:
        """Return the write job of a record; it returns False where the fence does not hold."""
        whole, answer = await lifted(self._db, *split_record(record))
        row = self._db.rows.record(fence, record, whole, answer)

        def job(connection: sqlite3.Connection) -> bool:
            if whole.cuts or answer.cuts:
                if not self._db.run(connection, "fence_holds", row).fetchone()[0]:
                    return False
                row["input_piece"] = keep(connection, self._db.sql, self._db.rows, whole)
                row["payload_piece"] = keep(connection, self._db.sql, self._db.rows, answer)
            written = self._db.run(connection, "append_record", row).rowcount == 1
            if written and record.invocation.kind in ENDS_WAIT:
                self._db.run(connection, "end_timer", row)
            return written

        return job

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

        def job(connection: sqlite3.Connection) -> bool:
            return self._db.run(connection, "begin_timer", row).rowcount == 1

        what = f"begin_timer {invocation.step_id}/{invocation.sequence}"
        await self._fenced(fence, job, what)

    async def _fenced(
        self, fence: Fence, job: Callable[[sqlite3.Connection], bool], what: str
    ) -> None:
        if not await self._db.write(job, what):
            raise self._db.fenced_off(fence.run_id)

    def _one(self, name: str, run_id: str, step_id: str, sequence: int) -> tuple[Any, ...]:
        key = {"run_id": run_id, "step_id": step_id, "sequence": signed(sequence)}
        row = self._db.read_row(name, **key)
        if row is None:
            raise JournalError(f"the journal holds no {place_of(run_id, step_id, sequence)}")
        return row
