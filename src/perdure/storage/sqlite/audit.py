from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.clock import Clock
from perdure.effects.audit import AUDIT_KEYS, AuditValue
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.memory import Memory


class SqliteAudit:
    """The audit records of one SQLite file, which may hold runs and receipts too."""

    def __init__(self, path: Path | Memory, clock: Clock, *, busy_seconds: float) -> None:
        self._db = Database(path, clock, Observer(), busy_seconds, no_probe)

    async def append(self, facts: Mapping[str, AuditValue]) -> None:
        """Add a record; `facts` holds allowed keys alone.

        Durable when it returns: the record, fsynced.
        If it raises: nothing was written.
        """
        row = {**dict.fromkeys(AUDIT_KEYS), **facts, "at": self._db.clock.now()}
        await self._db.write(
            lambda connection: self._db.run(connection, "append_audit", row), "audit.append"
        )

    async def read(
        self, operation_key: str | None, limit: int
    ) -> list[tuple[float, dict[str, AuditValue]]]:
        """Return records with the wall time of each, the newest first; None means of any effect."""
        if operation_key is None:
            rows = self._db.read("list_audit", limit=limit)
        else:
            rows = self._db.read("read_audit", limit=limit, operation_key=operation_key)
        return [(row[0], _facts(row[1:])) for row in rows]

    async def close(self) -> None:
        """Write what waits and close the file."""
        await self._db.close()


def _facts(row: tuple[Any, ...]) -> dict[str, AuditValue]:
    columns = zip(AUDIT_KEYS.items(), row, strict=True)
    return {key: kind(value) for (key, kind), value in columns if value is not None}
