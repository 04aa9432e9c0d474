from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from perdure.engine.retention import BlobsFound, Expiry
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.erasure import PostgresErasure
from perdure.storage.postgres.sessions import erase_messages

_ROWS: Final = 200
_RUNS: Final = 50
_SIMPLE: Final = ("receipts", "tombstones", "audit", "workers")
_WHY: Final = {"by": "retention", "why": "it was over for longer than runs are kept"}


class PostgresRetention(PostgresErasure):
    """Lets go of what is over for long enough."""

    def __init__(self, database: Database) -> None:
        PostgresErasure.__init__(self, database)

    async def count_expired(self, expiry: Expiry) -> Mapping[str, int]:
        """Return how much of each class has expired."""
        counts: dict[str, int] = {}
        for name, before in msgspec.structs.asdict(expiry).items():
            ((counts[name],),) = await self._db.read(f"count_{name}_expired", before=before)
        return counts

    async def holds_blobs(self) -> bool:
        """Return whether large values stand in a blob store; reads all rows where none does."""
        ((holds,),) = await self._db.read("holds_blobs")
        return bool(holds)

    async def look_for_blobs(self) -> BlobsFound:
        """Look for some of the blobs that rows need, in the blob store that was given."""
        return await self._db.blobs.look(self._newest_blobs)

    async def _newest_blobs(self, limit: int) -> list[bytes]:
        return [bytes(name) for (name,) in await self._db.read("newest_blobs", limit=limit)]

    async def collect_some(self, expiry: Expiry) -> Mapping[str, int]:
        """Delete some of what has expired, in one transaction of bounded size.

        Durable when it returns: the deletions, fsynced.
        """

        async def job(transaction: Transaction, again: bool) -> Mapping[str, int]:  # noqa: FBT001
            del again
            runs, parts = await self._collect_runs(transaction, expiry.runs)
            gone = {"runs": runs, "parts": parts}
            for name in _SIMPLE:
                row = {"before": getattr(expiry, name), "limit": _ROWS}
                gone[name] = await transaction.change(f"collect_{name}", row)
            row = {"before": expiry.sessions, "limit": _RUNS}
            gone["sessions"] = await transaction.change("collect_sessions", row)
            gone["parts"] += await erase_messages(transaction)
            # What a record was to refer to that was refused in the end.
            gone["parts"] += await transaction.change("collect_pieces", {"limit": _ROWS})
            return gone

        gone = await self._db.transact(job, "collect")
        await self._db.blobs.sweep()
        return gone

    async def _collect_runs(
        self, transaction: Transaction, before: float | None
    ) -> tuple[int, int]:
        row = {"before": before, "limit": _RUNS}
        gone = parts = 0
        for number, run_id in await transaction.run("expired_runs", row):
            found = {"run_number": number, "run_id": run_id}
            await transaction.run("mark_erased", {**_WHY, **found, "now": self._db.clock.now()})
            records, left = await self.erase_parts(transaction, found)
            parts += records
            if left:
                break
            await transaction.run("forget_attempts", found)
            await transaction.run("forget_run", found)
            gone += 1
            if parts >= _ROWS:
                break
        return gone, parts
