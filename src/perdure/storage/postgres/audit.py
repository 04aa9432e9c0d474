from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.clock import Clock
from perdure.effects.audit import AUDIT_KEYS, AuditValue
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.database import Database


class PostgresAudit:
    """The audit records of one PostgreSQL schema, which may hold runs and receipts too."""

    def __init__(self, url: str, clock: Clock, *, busy_seconds: float) -> None:
        self._db = Database(Address(url), clock, Observer(), busy_seconds, no_probe)

    async def open(self) -> None:
        """Connect; raises a `StorageError`."""
        await self._db.open(create=True)

    async def append(self, facts: Mapping[str, AuditValue]) -> None:
        """Add a record; `facts` holds allowed keys alone.

        Durable when it returns: the record, fsynced.
        If it raises: nothing was written, or nobody knows after a `StorageBusy`.
        """
        row = {**dict.fromkeys(AUDIT_KEYS), **facts, "at": self._db.clock.now()}
        await self._db.write("append_audit", row, "audit.append")

    async def read(
        self, operation_key: str | None, limit: int
    ) -> list[tuple[float, dict[str, AuditValue]]]:
        """Return records with the wall time of each, the newest first; None means of any effect."""
        if operation_key is None:
            rows = await self._db.read("list_audit", limit=limit)
        else:
            rows = await self._db.read("read_audit", limit=limit, operation_key=operation_key)
        return [(row[0], _facts(row[1:])) for row in rows]

    async def close(self) -> None:
        """Write what waits and disconnect."""
        await self._db.close()


def _facts(row: tuple[Any, ...]) -> dict[str, AuditValue]:
    columns = zip(AUDIT_KEYS, row, strict=True)
    return {key: value for key, value in columns if value is not None}
