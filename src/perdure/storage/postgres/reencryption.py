from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.engine.reencryption import CLASSES, Resealed
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.failures import NameTaken
from perdure.storage.reencryption import BATCH_ROWS, FIRST, Resealer
from perdure.storage.vault import UNREADABLE, lacking

_MOST_TRIES: Final = 5


class PostgresReencryption:
    """Encrypts anew what a PostgreSQL schema holds, batch by batch, beside whoever else writes."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._resealer = Resealer(database.rows)

    async def missing_keys(self) -> Sequence[str]:
        """Return the ids of the keys that the schema was written with and that are not here."""
        return lacking(self._db.rows.vault, await self._db.read("list_keys"))

    async def count_stale(self) -> Mapping[str, int]:
        """Return how many rows of each class hold what is not encrypted with the current key."""
        (counts,) = await self._db.read("count_stale", **self._resealer.heads)
        return dict(zip(CLASSES, counts, strict=True))

    async def reseal_some(self, name: str, after: Any) -> Resealed:
        """Encrypt some rows of a class with the current key, in one transaction of bounded size.

        Durable when it returns: the rows, fsynced.
        """
        first = FIRST.get(name, b"" if name == "pieces" else 0) if after is None else after
        row = {**self._resealer.heads, "after": first, "limit": BATCH_ROWS}
        await self._db.note_key()
        open_ = self._resealer.in_the_open(name, await self._db.read(f"stale_{name}", **row))
        moved = await self._db.blobs.seal_again(open_)
        new: list[dict[str, Any]] = []

        async def job(transaction: Transaction, again: bool) -> Resealed:  # noqa: FBT001
            del again
            new.clear()
            found = await transaction.run(f"stale_{name}", row)
            unreadable: list[str] = []
            for one in found:
                try:
                    new.append(self._resealer.reseal(name, one, moved))
                except UNREADABLE as error:
                    unreadable.append(str(error))
            if name == "pieces":
                new[:] = await self._named(transaction, new)
            for one in new:
                await transaction.run(f"reseal_{name}", one)
            after = found[-1][0] if len(found) == BATCH_ROWS else None
            return Resealed(name, len(new), unreadable, after)

        some = await self._insist(job)
        if name == "pieces":
            await self._erase_unneeded([piece["digest"] for piece in new])
        return some

    async def end_resealing(self, *, whole: bool, rewrite: bool) -> bool:
        """Forget the earlier keys if `whole`; with `rewrite`, write all tables anew.

        Returns whether nothing of earlier values is left in the tables.
        Durable when it returns: all of that.
        """
        await self._db.blobs.sweep()
        if whole:
            current = self._db.rows.vault.keys.current
            listed = await self._db.read("list_keys")
            ids = [key_id for key_id, _ in listed if key_id != current]
            await self._db.write("forget_keys", {"key_ids": ids}, "forget_keys")
        if rewrite:
            await self._db.rewrite()
        return rewrite

    async def _insist(self, job: Any) -> Resealed:
        for _ in range(_MOST_TRIES):
            try:
                return await self._db.transact(job, "reseal")
            except NameTaken:
                # By somebody who stored the same piece at the same moment: it is seen now.
                continue
        return await self._db.transact(job, "reseal")

    async def _named(
        self, transaction: Transaction, pieces: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return pieces under names that nothing else has."""
        names = [piece["digest"] for piece in pieces if piece["digest"] != piece["number"]]
        taken = {name for (name,) in await transaction.run("known_pieces", {"digests": names})}
        named: list[dict[str, Any]] = []
        for piece in pieces:
            own = piece if piece["digest"] not in taken else self._resealer.renamed(piece)
            taken.add(own["digest"])
            named.append(own)
        return named

    async def _erase_unneeded(self, names: Sequence[bytes]) -> None:
        """Delete those pieces whose last need was erased while they were locked."""
        while names:
            row = {"digests": [*names]}
            above = await self._db.write("erase_pieces", row, "reseal.erase")
            names = [parent for (parent,) in above if parent is not None]
