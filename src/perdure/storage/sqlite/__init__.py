from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure.clock import Clock
from perdure.observe import Observer
from perdure.storage.blobs import BlobStore
from perdure.storage.sqlite.archive import SqliteArchive
from perdure.storage.sqlite.boundary import SqliteBoundary
from perdure.storage.sqlite.checkpoints import SqliteCheckpoints
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.health import SqliteHealth
from perdure.storage.sqlite.memory import Memory
from perdure.storage.sqlite.reencryption import SqliteReencryption
from perdure.storage.sqlite.retention import SqliteRetention
from perdure.storage.sqlite.runs import SqliteRuns
from perdure.storage.sqlite.schedules import SqliteSchedules
from perdure.storage.sqlite.sessions import SqliteSessions
from perdure.storage.sqlite.turns import SqliteTurns
from perdure.storage.sqlite.workers import SqliteWorkers
from perdure.storage.vault import OpenVault, Vault


class SqliteStorage(
    SqliteBoundary,
    SqliteCheckpoints,
    SqliteSchedules,
    SqliteTurns,
    SqliteSessions,
    SqliteRetention,
    SqliteArchive,
    SqliteRuns,
    SqliteWorkers,
    SqliteHealth,
    SqliteReencryption,
):
    """Keeps runs, journals and leases in one SQLite file, for any number of local processes.

    The file must be on a local disk: SQLite's log does not work over a network file system. In
    place of a file there may be memory, for one process.
    """

    def __init__(
        self,
        path: Path | Memory,
        clock: Clock,
        observer: Observer,
        *,
        busy_seconds: float,
        probe: Callable[[str], None],
        vault: Vault | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        self.clock = clock
        database = Database(
            path, clock, observer, busy_seconds, probe, vault or OpenVault(), blobs=blobs
        )
        SqliteBoundary.__init__(self, database)
        SqliteCheckpoints.__init__(self, database)
        SqliteSchedules.__init__(self, database)
        SqliteTurns.__init__(self, database)
        SqliteSessions.__init__(self, database)
        SqliteRetention.__init__(self, database)
        SqliteReencryption.__init__(self, database)
        SqliteArchive.__init__(self, database)
        SqliteRuns.__init__(self, database)
        SqliteWorkers.__init__(self, database)
        SqliteHealth.__init__(self, database)
        self._seen = -1

    def changed(self) -> bool:
        """Return whether anything may have been written since the last call, by anyone."""
        seen, self._seen = self._seen, self._db.data_version()
        return seen != self._seen

    async def close(self) -> None:
        """Finish the writes under way, release this process's locks and close the file."""
        self.close_workers()
        await self._db.close()
