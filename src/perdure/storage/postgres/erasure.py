from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from perdure.engine.store import RunState
from perdure.errors import UnknownRun
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.receipt_rows import erasure_row, not_ended, not_settled

_ROWS: Final = 200
_SMALL: Final = ("checkpoints", "messages", "approvals")
_PAUSE_SECONDS: Final = 0.005


class PostgresErasure:
    """Deletes on request what runs and receipts hold, and leaves tombstones in their place.

    The tombstone of a run is written first, with the first part of the work. The rest follows in
    transactions of bounded size; each can be the last before a crash, and erasing again goes on
    from there. PostgreSQL frees what is deleted when it vacuums, and its log and its backups keep
    it for as long as they are kept.
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

        async def job(transaction: Transaction, again: bool) -> tuple[bool, int]:  # noqa: FBT001
            del again
            found = await self._find_ended(transaction, row)
            if found is None:
                raise UnknownRun(f"there is no run {run_id!r} in this store")
            await transaction.run("mark_erased", row)
            erased, left = await self.erase_parts(transaction, found)
            if not left:
                buried = await self._erase_receipts(transaction, row)
                erased, left = erased + buried, buried >= _ROWS
            ((blobs,),) = await transaction.run("leaves_blobs", {})
            await transaction.run("note_erasing", {**found, "left": left or blobs})
            return left, erased

        await self._in_parts(job, "erase_run")
        if await self._db.read("leaves_blobs") == [(True,)]:
            await self._db.blobs.sweep()
            await self._db.write("note_erased_whole", row, "erase_run")
        if rewrite:
            await self._db.rewrite()

    async def erase_receipts(self, run_id: str, *, by: str, why: str) -> int:
        """Delete the receipts of a run, or of whatever they belong to, and keep tombstones.

        Returns how many. Durable when it returns: the tombstones and the deletions, fsynced.
        If it raises: as `erase_run`, but that the run may be unknown here.
        """
        row = erasure_row(run_id, by, why, self._db.clock.now())

        async def job(transaction: Transaction, again: bool) -> tuple[bool, int]:  # noqa: FBT001
            del again
            await self._find_ended(transaction, row)
            erased = await self._erase_receipts(transaction, row)
            return erased >= _ROWS, erased

        return await self._in_parts(job, "erase_receipts")

    async def erase_parts(
        self, transaction: Transaction, found: Mapping[str, Any]
    ) -> tuple[int, bool]:
        """Delete what a run was given, recorded and came to.

        Returns how many rows, and whether any of them are left.
        """
        await transaction.run("erase_timers", found)
        await self._erase_pieces(transaction, await transaction.run("erase_documents", found))
        row = {**found, "limit": _ROWS}
        erased = 0
        for name in _SMALL:
            erased += await transaction.change(f"erase_{name}", row)
            if erased >= _ROWS:
                return erased, True
        records = await self._erase_records(transaction, found)
        return erased + records, records >= _ROWS

    async def _in_parts(
        self, job: Callable[[Transaction, bool], Awaitable[tuple[bool, int]]], what: str
    ) -> int:
        """Run a job in transactions of its own until nothing is left; return the rows deleted."""
        left, erased = await self._db.transact(job, what)
        while left:
            await asyncio.sleep(_PAUSE_SECONDS)
            left, more = await self._db.transact(job, what)
            erased += more
        return erased

    async def _find_ended(
        self, transaction: Transaction, row: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the run's number, or None for an unknown run; raise if it cannot be erased."""
        found = await transaction.run("find_erasable", row)
        if found and not RunState(found[0][1]).ended:
            raise not_ended(row["run_id"], found[0][1])
        keys = [key for (key,) in await transaction.run("open_keys_of", row)]
        if keys:
            raise not_settled(row["run_id"], keys)
        return {"run_number": found[0][0]} if found else None

    async def _erase_records(self, transaction: Transaction, found: Mapping[str, Any]) -> int:
        """Delete some records and the pieces that only they need; return how many records."""
        rows = await transaction.run("erase_records", {**found, "limit": _ROWS})
        await self._erase_pieces(transaction, rows)
        return len(rows)

    async def _erase_pieces(
        self, transaction: Transaction, rows: Sequence[tuple[bytes | None, ...]]
    ) -> None:
        """Delete pieces from the last ones up, as far as nobody else needs them."""
        while ends := [piece for row in rows for piece in row if piece is not None]:
            rows = await transaction.run("erase_pieces", {"digests": ends})

    async def _erase_receipts(self, transaction: Transaction, row: Mapping[str, Any]) -> int:
        """Put tombstones in the place of some receipts; return how many."""
        return len(await transaction.run("bury_receipts", {**row, "limit": _ROWS}))
