from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from perdure.canonical import sha256_hex
from perdure.errors import InputDigestMismatch, JournalError, StorageCorrupt
from perdure.fence import Fence
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.store import Journal, JournalRow, NewRecord, TimerRow, pack_outcome
from perdure.storage.sqlite import pieces
from perdure.storage.sqlite.database import Database, fence_row

WHOLE_JOURNAL_PAYLOAD_BYTES: Final = 4096
"""The largest payload that comes along when a whole journal is read."""

_SIGN: Final = 1 << 63
_RANGE: Final = 1 << 64


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
            rows = [_journal_row(row) for row in self._db.run(connection, "read_records", key)]
            timers = [_timer_row(row) for row in self._db.run(connection, "read_timers", key)]
            begun = {
                (step_id, unsigned(sequence)): operation_key
                for step_id, sequence, operation_key in self._db.run(connection, "read_begun", key)
            }
        return Journal(rows, timers, begun)

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the payload of one record, of any size."""
        packing, payload = self._one("read_payload", run_id, step_id, sequence)
        return pieces.unpack(packing, payload)

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the exact input of one record.

        Raises `InputDigestMismatch` when the file no longer holds what was written.
        """
        piece, packing, tail, digest = self._one("read_input", run_id, step_id, sequence)
        rows = [] if piece is None else self._db.read("read_pieces", piece=piece)
        try:
            document = pieces.join([*rows, (packing, tail)])
        except StorageCorrupt:
            document = None
        if document is None or sha256_hex(document) != digest.hex():
            raise InputDigestMismatch(
                f"the input of operation {run_id}/{step_id}/{sequence} is damaged in the database;"
                " restore it from a backup"
            )
        return document

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        """Write a record under the fence, and end the delay of the same key.

        Durable when it returns: the record, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        invocation = record.invocation
        what = f"record {invocation.step_id}/{invocation.sequence}"
        await self._fenced(fence, self.append(fence, record), what)

    def append(self, fence: Fence, record: NewRecord) -> Callable[[sqlite3.Connection], bool]:
        """Return the write job of a record; it returns False where the fence does not hold."""
        split = pieces.split(record.invocation.input_json, record.cuts, record.beginnings)
        row = _record_row(fence, record, split.tail)

        def job(connection: sqlite3.Connection) -> bool:
            if split.cuts:
                if not self._db.run(connection, "fence_holds", row).fetchone()[0]:
                    return False
                row["input_piece"] = pieces.keep(connection, self._db.sql, split)
            written = self._db.run(connection, "append_record", row).rowcount == 1
            if written and record.invocation.kind is OperationKind.RETRY_DELAY:
                self._db.run(connection, "end_timer", row)
            return written

        return job

    async def begin_timer(
        self, fence: Fence, invocation: Invocation, input_sha256: bytes, wake_at: float
    ) -> None:
        """Write that a delay has begun, under the fence.

        Durable when it returns: the wake-up time, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        row = {
            **fence_row(fence),
            "step_id": invocation.step_id,
            "sequence": _signed(invocation.sequence),
            "kind": invocation.kind.value,
            "handler_id": invocation.handler_id,
            "input_sha256": input_sha256,
            "input": invocation.input_json,
            "wake_at": wake_at,
        }

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
        key = {"run_id": run_id, "step_id": step_id, "sequence": _signed(sequence)}
        row = self._db.read_row(name, **key)
        if row is None:
            raise JournalError(f"the journal holds no operation {run_id}/{step_id}/{sequence}")
        return row


def _record_row(fence: Fence, record: NewRecord, tail: bytes) -> dict[str, Any]:
    invocation = record.invocation
    status, payload = pack_outcome(record.outcome)
    payload_packing, packed = pieces.pack(payload)
    input_packing, tail = pieces.pack(tail)
    return {
        "run_id": fence.run_id,
        "holder": fence.holder,
        "generation": fence.generation,
        "step_id": invocation.step_id,
        "sequence": _signed(invocation.sequence),
        "kind": invocation.kind.value,
        "handler_id": invocation.handler_id,
        "input_sha256": record.input_sha256,
        "input_bytes": len(invocation.input_json),
        "status": status,
        "attempt": record.attempt,
        "nested": record.nested,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "input_piece": None,
        "input_packing": input_packing,
        "input_tail": tail,
        "payload_packing": payload_packing,
        "payload_bytes": len(payload),
        "payload": packed,
    }


def _journal_row(row: tuple[Any, ...]) -> JournalRow:
    # Built column by column: loading them is a good part of what a replay of many records costs.
    step_id, sequence, kind, handler_id, digest, status, attempt, at, nested, packing, payload = row
    if packing != pieces.PLAIN and payload is not None:
        payload = pieces.unpack(packing, payload)
    if sequence < 0:
        sequence = unsigned(sequence)
    nested = nested != 0
    return JournalRow(
        step_id, sequence, kind, handler_id, digest, status, payload, attempt, at, nested
    )


def _timer_row(row: tuple[Any, ...]) -> TimerRow:
    step_id, sequence, *rest = row
    return TimerRow(step_id, unsigned(sequence), *rest)


def unsigned(sequence: int) -> int:
    """Return the unsigned 64-bit number that SQLite stores as a signed one."""
    return sequence if sequence >= 0 else sequence + _RANGE


def _signed(sequence: int) -> int:
    """Map an unsigned 64-bit number to the signed one that SQLite stores."""
    return sequence if sequence < _SIGN else sequence - _RANGE
