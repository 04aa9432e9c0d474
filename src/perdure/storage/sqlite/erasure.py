from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from perdure.engine.store import RunState
from perdure.errors import UnknownRun
from perdure.storage.receipt_rows import erasure_row, not_ended, not_settled
from perdure.storage.sqlite.database import Database

_ROWS: Final = 200
_BYTES: Final = 4 * 1024 * 1024

_SMALL: Final = ("checkpoint", "message", "approval")

_PAUSE_SECONDS: Final = 0.005
"""How long another process has between two transactions to get the write lock."""


class Budget:
    """How much one transaction may still delete; the first row always fits."""

    def __init__(self) -> None:
        self.taken = 0
        self._bytes = 0

    @property
    def spent(self) -> bool:
        """Whether no further row fits."""
        return self.taken >= _ROWS or self._bytes >= _BYTES

    def take(self, size: int) -> None:
        """Count a row with so many bytes that is deleted."""
        self.taken += 1
        self._bytes += size


class SqliteErasure:
    """Deletes on request what runs and receipts hold, and leaves tombstones in their place.

    The tombstone of a run is written first, with the first part of the work. The rest follows in
    transactions of bounded size, so that other writers get their turns; each can be the last
    before a crash, and erasing again goes on from there. SQLite overwrites what is deleted.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    async def erase_run(self, run_id: str, *, by: str, why: str, rewrite: bool = False) -> None:
        """Delete all that an ended run holds, its receipts too, and keep a tombstone.

        Durable when it returns: the tombstone and the deletions, fsynced.
        If it raises: `UnknownRun` or `NotErasable`, and nothing was deleted;
        after a `StorageError`, erasing again finishes what the run's `tombstone` says is begun.
        """
        row = erasure_row(run_id, by, why, self._db.clock.now())

        def job(connection: sqlite3.Connection, budget: Budget) -> bool:
            found = self._find_ended(connection, row)
            if found is None:
                raise UnknownRun(f"there is no run {run_id!r} in this store")
            self._db.run(connection, "mark_erased", row)
            left = self.erase_parts(connection, found, budget)
            left = left or self._erase_receipts(connection, row, budget)
            blobs = self._db.run(connection, "leaves_blobs", {}).fetchone()[0]
            self._db.run(connection, "note_erasing", {**found, "left": left or blobs})
            return left

        await self._in_parts(job, "erase_run")
        if self._db.read("leaves_blobs") == [(1,)]:
            await self._db.blobs.sweep()
            await self._db.write(
                lambda connection: self._db.run(connection, "note_erased_whole", row).rowcount,
                "erase_run",
            )
        await self._db.scrub(rewrite=rewrite)

    async def erase_receipts(self, run_id: str, *, by: str, why: str) -> int:
        """Delete the receipts of a run, or of whatever they belong to, and keep tombstones.

        Returns how many. Durable when it returns: the tombstones and the deletions, fsynced.
        If it raises: as `erase_run`, but that the run may be unknown here.
        """
        row = erasure_row(run_id, by, why, self._db.clock.now())

        def job(connection: sqlite3.Connection, budget: Budget) -> bool:
            self._find_ended(connection, row)
            return self._erase_receipts(connection, row, budget)

        erased = await self._in_parts(job, "erase_receipts")
        await self._db.scrub()
        return erased

    def erase_parts(
        self, connection: sqlite3.Connection, found: dict[str, Any], budget: Budget
    ) -> bool:
        """Delete what a run was given, recorded and came to; return whether any of it is left."""
        self._db.run(connection, "erase_timers", found)
        left = any(self._erase_small(connection, name, found, budget) for name in _SMALL)
        left = left or self._erase_records(connection, found, budget)
        return left or self._erase_documents(connection, found, budget)

    async def _in_parts(self, job: Callable[[sqlite3.Connection, Budget], bool], what: str) -> int:
        """Run a job in transactions of its own until nothing is left; return the rows deleted."""

        def part(connection: sqlite3.Connection) -> tuple[bool, int]:
            budget = Budget()
            return job(connection, budget), budget.taken

        left, erased = await self._db.write(part, what)
        while left:
            await asyncio.sleep(_PAUSE_SECONDS)
            left, more = await self._db.write(part, what)
            erased += more
        return erased

    def _find_ended(
        self, connection: sqlite3.Connection, row: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the run's number, or None for an unknown run; raise if it cannot be erased."""
        found = self._db.run(connection, "find_erasable", row).fetchone()
        if found is not None and not RunState(found[1]).ended:
            raise not_ended(row["run_id"], found[1])
        keys = [key for (key,) in self._db.run(connection, "open_keys_of", row)]
        if keys:
            raise not_settled(row["run_id"], keys)
        names = ("run_number", "state", "input_piece", "output_piece")
        return None if found is None else dict(zip(names, found, strict=True))

    def _erase_small(
        self, connection: sqlite3.Connection, name: str, found: dict[str, Any], budget: Budget
    ) -> bool:
        """Delete what a run has of a table without pieces; return whether any is left."""
        row = {**found, "limit": _ROWS}
        some = self._db.run(connection, f"{name}s_to_erase", row).fetchall()
        for number, size in some:
            if budget.spent:
                return True
            self._db.run(connection, f"erase_{name}", {f"{name}_number": number})
            budget.take(size)
        return len(some) == _ROWS

    def _erase_records(
        self, connection: sqlite3.Connection, found: dict[str, Any], budget: Budget
    ) -> bool:
        """Delete records and the pieces that only they need; return whether any are left."""
        some = self._db.run(connection, "records_to_erase", {**found, "limit": _ROWS}).fetchall()
        for number, asked, answered, size in some:
            key = {"record_number": number}
            for name, piece in (("shorten_input", asked), ("shorten_payload", answered)):
                if budget.spent or self._erase_pieces(connection, name, key, piece, budget):
                    return True
            self._db.run(connection, "erase_record", key)
            budget.take(size)
        return len(some) == _ROWS

    def _erase_documents(
        self, connection: sqlite3.Connection, found: dict[str, Any], budget: Budget
    ) -> bool:
        """Delete the pieces of a run's input and output; return whether any are left."""
        documents = (("shorten_run_input", "input_piece"), ("shorten_run_output", "output_piece"))
        for name, column in documents:
            if self._erase_pieces(connection, name, found, found[column], budget):
                return True
        return False

    def _erase_pieces(
        self,
        connection: sqlite3.Connection,
        name: str,
        key: dict[str, Any],
        piece: int | None,
        budget: Budget,
    ) -> bool:
        """Delete the pieces of a document from the last one up, as far as nobody else needs them.

        The statement `name` notes which one is the last. Returns whether any are left because the
        budget is spent.
        """
        if piece is None:
            return False
        self._db.run(connection, name, {**key, "piece": None})
        while piece is not None:
            if budget.spent:
                self._db.run(connection, name, {**key, "piece": piece})
                return True
            deleted = self._db.run(connection, "erase_piece", {"piece": piece}).fetchall()
            if not deleted:
                return False
            ((piece, size),) = deleted
            budget.take(size)
        return False

    def _erase_receipts(
        self, connection: sqlite3.Connection, row: dict[str, Any], budget: Budget
    ) -> bool:
        """Put tombstones in the place of receipts; return whether any receipts are left."""
        some = self._db.run(connection, "receipts_to_erase", {**row, "limit": _ROWS}).fetchall()
        for number, size in some:
            if budget.spent:
                return True
            key = {"receipt_number": number}
            self._db.run(connection, "bury_receipt", {**row, **key})
            self._db.run(connection, "erase_receipt", key)
            budget.take(size)
        return len(some) == _ROWS
