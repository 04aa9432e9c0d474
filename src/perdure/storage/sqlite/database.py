from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from perdure.clock import Clock
from perdure.errors import StorageReadOnly
from perdure.observe import Observer
from perdure.storage.queries import load_queries
from perdure.storage.sqlite.failures import storage_error
from perdure.storage.sqlite.migrate import migrate
from perdure.storage.sqlite.writer import Writer

T = TypeVar("T")


class Database:
    """An open SQLite file: one reading connection for the loop, one writing one behind a `Writer`.

    WAL with `synchronous=FULL`: a write that was awaited is on the disk.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
    ) -> None:
        self.path = path
        self.clock = clock
        self.observer = observer
        self.busy_seconds = busy_seconds
        self.sql = load_queries("sqlite")
        self._writing = connect(path, busy_seconds)
        try:
            migrate(self._writing, str(path))
            self._reading = connect(path, busy_seconds)
        except sqlite3.Error as error:
            self._writing.close()
            raise storage_error(error) from error
        except BaseException:
            self._writing.close()
            raise
        # The writer waits for the lock itself, so that a commit in the event loop never does.
        self._writing.execute("PRAGMA busy_timeout = 0")
        self._writer = Writer(self._writing, busy_seconds, probe)

    def read(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named query on the reading connection and return its rows."""
        try:
            return self._reading.execute(self.sql[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise storage_error(error) from error

    def read_row(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a named query and return its first row, or None."""
        rows = self.read(name, **parameters)
        return rows[0] if rows else None

    @contextmanager
    def apart(self) -> Generator[sqlite3.Connection]:
        """Open a reading connection for a thread's long reads, and close it."""
        connection = connect(self.path, self.busy_seconds)
        try:
            yield connection
        except sqlite3.Error as error:
            raise storage_error(error) from error
        finally:
            connection.close()

    def run(
        self, connection: sqlite3.Connection, name: str, parameters: Mapping[str, Any]
    ) -> sqlite3.Cursor:
        """Run a named statement inside a write job."""
        return connection.execute(self.sql[name], parameters)

    async def write(self, job: Callable[[sqlite3.Connection], T], what: str) -> T:
        """Run a job in a write transaction, with whatever else waits for one.

        `what` names the write to the probe.

        Durable when it returns: what the job wrote, fsynced.
        """
        return await self._writer.write(job, what)

    def data_version(self) -> int:
        """Return a number that changes whenever anyone commits."""
        ((version,),) = self._reading.execute("PRAGMA data_version").fetchall()
        return int(version)

    async def close(self) -> None:
        """Commit what waits, fold the log into the file and close it."""
        await self._writer.close()
        self._reading.close()
        # Where another process reads or writes, the log is folded by whoever closes last.
        with suppress(sqlite3.Error):
            self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._writing.close()


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time, without implicit transactions.

    Raises `StorageReadOnly` when the file or its folder cannot be written.
    """
    if not path.parent.is_dir():
        raise StorageReadOnly(f"the folder {path.parent} does not exist; create it, or fix the URL")
    try:
        connection = sqlite3.connect(
            path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as error:
        raise storage_error(error) from error
    return connection
