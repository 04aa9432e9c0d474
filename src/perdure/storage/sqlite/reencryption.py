from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.engine.reencryption import CLASSES, Resealed
from perdure.storage.reencryption import (
    BATCH_BYTES,
    BATCH_ROWS,
    FIRST,
    PAUSE_SECONDS,
    Resealer,
    size_of,
)
from perdure.storage.sqlite.database import Database
from perdure.storage.vault import UNREADABLE, lacking


class SqliteReencryption:
    """Encrypts anew what a SQLite file holds, batch by batch, so that others write in between."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._resealer = Resealer(database.rows)

    async def missing_keys(self) -> Sequence[str]:
        """Return the ids of the keys that the file was written with and that are not here."""
        return lacking(self._db.rows.vault, self._db.read("list_keys"))

    async def count_stale(self) -> Mapping[str, int]:
        """Return how many rows of each class hold what is not encrypted with the current key."""
        return await asyncio.to_thread(self._count_stale)

    def _count_stale(self) -> Mapping[str, int]:
        with self._db.apart() as connection:
            (counts,) = self._db.run(connection, "count_stale", self._resealer.heads).fetchall()
        return dict(zip(CLASSES, counts, strict=True))

    async def reseal_some(self, name: str, after: Any) -> Resealed:
        """Encrypt some rows of a class with the current key, in one transaction of bounded size.

        Durable when it returns: the rows, fsynced.
        """
        first = FIRST.get(name, 0) if after is None else after
        row = {**self._resealer.heads, "after": first, "limit": BATCH_ROWS}
        await self._db.note_key()
        await asyncio.sleep(PAUSE_SECONDS)
        open_ = self._resealer.in_the_open(name, self._db.read(f"stale_{name}", **row))
        moved = await self._db.blobs.seal_again(open_)
        return await self._db.write(
            lambda connection: self._reseal(connection, name, row, moved), "reseal"
        )

    def _reseal(
        self,
        connection: sqlite3.Connection,
        name: str,
        row: dict[str, Any],
        moved: Mapping[bytes, bytes],
    ) -> Resealed:
        found: list[tuple[Any, ...]] = []
        size = 0
        rows = self._db.run(connection, f"stale_{name}", row)
        for one in rows:
            found.append(one)
            size += size_of(one)
            if size >= BATCH_BYTES:
                break
        rows.close()
        unreadable: list[str] = []
        for one in found:
            try:
                new = self._resealer.reseal(name, one, moved)
            except UNREADABLE as error:
                unreadable.append(str(error))
                continue
            if name == "pieces" and self._is_taken(connection, new):
                new = self._resealer.renamed(new)
            self._db.run(connection, f"reseal_{name}", new)
        more = len(found) == BATCH_ROWS or size >= BATCH_BYTES
        count = len(found) - len(unreadable)
        return Resealed(name, count, unreadable, found[-1][0] if more else None)

    def _is_taken(self, connection: sqlite3.Connection, piece: dict[str, Any]) -> bool:
        found = self._db.run(connection, "find_piece", {"digest": piece["digest"]}).fetchone()
        return found is not None and found[0] != piece["number"]

    async def end_resealing(self, *, whole: bool, rewrite: bool) -> bool:
        """Forget the earlier keys if `whole`, and empty the log; with `rewrite`, write all anew.

        Returns whether nothing of earlier values is left in the file and its log.
        Durable when it returns: all of that.
        """
        await self._db.blobs.sweep()
        if whole:
            current = self._db.rows.vault.keys.current
            ids = [key_id for key_id, _ in self._db.read("list_keys") if key_id != current]
            row = {"key_ids": msgspec.json.encode(ids).decode()}
            await self._db.write(
                lambda connection: self._db.run(connection, "forget_keys", row).rowcount,
                "forget_keys",
            )
        return await self._db.scrub(rewrite=rewrite) and rewrite
