from __future__ import annotations

from collections.abc import Callable

from perdure.clock import Clock
from perdure.observe import Observer
from perdure.storage.blobs import BlobStore
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.archive import PostgresArchive
from perdure.storage.postgres.boundary import PostgresBoundary
from perdure.storage.postgres.checkpoints import PostgresCheckpoints
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.health import PostgresHealth
from perdure.storage.postgres.hints import Hints
from perdure.storage.postgres.reencryption import PostgresReencryption
from perdure.storage.postgres.retention import PostgresRetention
from perdure.storage.postgres.runs import PostgresRuns
from perdure.storage.postgres.schedules import PostgresSchedules
from perdure.storage.postgres.sessions import PostgresSessions
from perdure.storage.postgres.turns import PostgresTurns
from perdure.storage.postgres.workers import PostgresWorkers
from perdure.storage.vault import OpenVault, Vault


class PostgresStorage(
    PostgresBoundary,
    PostgresCheckpoints,
    PostgresSchedules,
    PostgresTurns,
    PostgresSessions,
    PostgresRetention,
    PostgresArchive,
    PostgresRuns,
    PostgresWorkers,
    PostgresHealth,
    PostgresReencryption,
):
    """Keeps runs, journals and leases in one schema of a PostgreSQL database.

    Any number of processes on any number of hosts may share it.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        observer: Observer,
        *,
        busy_seconds: float,
        probe: Callable[[str], None],
        vault: Vault | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        vault = vault or OpenVault()
        database = Database(Address(url), clock, observer, busy_seconds, probe, vault, blobs=blobs)
        self.clock = database.clock
        self.hints = Hints(database)
        PostgresBoundary.__init__(self, database)
        PostgresCheckpoints.__init__(self, database)
        PostgresSchedules.__init__(self, database)
        PostgresTurns.__init__(self, database)
        PostgresSessions.__init__(self, database)
        PostgresRetention.__init__(self, database)
        PostgresReencryption.__init__(self, database)
        PostgresArchive.__init__(self, database)
        PostgresRuns.__init__(self, database)
        PostgresWorkers.__init__(self, database)
        PostgresHealth.__init__(self, database)

    async def open(self, *, create: bool = True) -> None:
        """Connect and bring the schema up to date.

        Raises `StorageMissing` without `create` where there is no schema, or a `StorageError`.
        """
        await self._db.open(create=create)
        self.hints.open()

    def changed(self) -> bool:
        """Return whether anything may have been written since the last call, by anyone."""
        return self.hints.changed()

    async def close(self) -> None:
        """Finish the writes under way, release this process's locks and disconnect."""
        self.close_workers()
        await self.close_runs()
        await self.close_boundary()
        await self.hints.close()
        await self._db.close()
