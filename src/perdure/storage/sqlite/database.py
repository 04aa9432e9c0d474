from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.clock import Clock
from perdure.errors import LeaseLost, StorageError, StorageReadOnly
from perdure.observe import Observer
from perdure.storage.blobs import Blobs, BlobStore
from perdure.storage.queries import load_queries
from perdure.storage.rows import Rows
from perdure.storage.sqlite.checkpoint import UNFOLDED_PAGES
from perdure.storage.sqlite.failures import storage_error
from perdure.storage.sqlite.memory import Memory
from perdure.storage.sqlite.migrate import check_owner, migrate
from perdure.storage.sqlite.writer import Writer
from perdure.storage.vault import OpenVault, Vault, admit

T = TypeVar("T")

_OLDEST_SQLITE: Final = (3, 37)
_SCRUB_MILLISECONDS: Final = 100


class Database:
    """An open SQLite file: one reading connection for the loop, one writing one behind a `Writer`.

    WAL with `synchronous=FULL`: a write that was awaited is on the disk. In place of a file, there
    may be memory.
    """

    def __init__(
        self,
        path: Path | Memory,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        vault: Vault | None = None,
        *,
        blobs: BlobStore | None = None,
    ) -> None:
        self.path = path
        self.clock = clock
        self.observer = observer
        self.busy_seconds = busy_seconds
        self.rows = Rows(vault or OpenVault())
        self.blobs = Blobs(blobs, self.rows, self)
        self.sql = load_queries("sqlite")
        self._writing = connect(path, busy_seconds)
        try:
            migrate(self._writing, str(path), probe)
            self._noted = vault is None or self._admit(vault)
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

    async def document(self, place: str, piece: int | None, packing: int, stored: bytes) -> bytes:
        """Return a document from its last piece and its rest, read on the reading connection."""
        pieces: list[Any] = [] if piece is None else self.read("read_pieces", piece=piece)
        return await self.blobs.document(place, pieces, packing, stored)

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

    async def note_key(self) -> None:
        """Note which key seals, unless that is known: called before anything is sealed with it.

        Durable when it returns: the note, fsynced.
        """
        if self._noted:
            return
        keys = self.rows.vault.keys
        key = {"key_id": keys.current, "proof": keys.proofs[keys.current or ""]}
        await self.write(lambda connection: self.run(connection, "note_key", key), "note_key")
        self._noted = True

    async def note_blobs(self, names: Sequence[bytes]) -> None:
        """Note blobs that are about to be put. Durable when it returns: the notes, fsynced."""
        rows = [{"name": name, "since": self.clock.now()} for name in names]
        await self.write(
            lambda connection: connection.executemany(self.sql["note_blobs"], rows).rowcount,
            "note_blobs",
        )

    async def condemn_blobs(self, seconds: float, limit: int) -> Sequence[bytes]:
        """Return blobs that no row needs, and that none can need from now on.

        Durable when it returns: that none can.
        """
        row = {"before": self.clock.now() - seconds, "limit": limit}
        if self.read("any_condemned", **row) == [(0,)]:
            return []

        def job(connection: sqlite3.Connection) -> list[bytes]:
            self.run(connection, "condemn_blobs", row)
            return [name for (name,) in self.run(connection, "condemned_blobs", row)]

        return await self.write(job, "condemn_blobs")

    async def forget_blobs(self, names: Sequence[bytes]) -> None:
        """Forget blobs that were deleted. Durable when it returns: that, fsynced."""
        rows = [{"name": name} for name in names]
        await self.write(
            lambda connection: connection.executemany(self.sql["forget_blobs"], rows).rowcount,
            "forget_blobs",
        )

    def _admit(self, vault: Vault) -> bool:
        """Check the vault against the keys of the file; return whether its own is among them."""
        noted = self._writing.execute(self.sql["list_keys"]).fetchall()
        ((used,),) = self._writing.execute(self.sql["holds_any"]).fetchall()
        admit(vault, noted, used=bool(used))
        current = vault.keys.current
        return current is None or current in dict(noted)

    def fenced_off(self, run_id: str) -> LeaseLost:
        """Count a write that was refused because its run has another owner; return the signal."""
        self.observer.count("perdure_lease_fencing_rejected_total")
        return LeaseLost(run_id)

    async def scrub(self, *, rewrite: bool = False) -> bool:
        """Empty the log, where what was deleted still stands, unless somebody reads right now.

        With `rewrite` the whole file is written anew before, while other writers wait. Returns
        whether the log is empty.
        """
        return await asyncio.to_thread(self._scrub, rewrite=rewrite)

    def _scrub(self, *, rewrite: bool) -> bool:
        with self.apart() as connection:
            if rewrite:
                connection.execute("VACUUM")
            # Nobody may write while it waits for readers.
            connection.execute(f"PRAGMA busy_timeout = {_SCRUB_MILLISECONDS}")
            # A log that cannot be folded now is folded later, and cut by whoever closes last.
            with suppress(sqlite3.Error):
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                return not busy
        return False

    def data_version(self) -> int:
        """Return a number that changes whenever anyone commits."""
        try:
            ((version,),) = self._reading.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error as error:
            raise storage_error(error) from error
        return int(version)

    async def close(self) -> None:
        """Commit what waits, fold the log into the file and close it."""
        await self._writer.close()
        self._reading.close()
        # Where another process reads or writes, the log is folded by whoever closes last.
        with suppress(sqlite3.Error):
            self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._writing.close()


def connect(path: Path | Memory, busy_seconds: float) -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time, without implicit transactions.

    Raises `StorageReadOnly` when the file or its folder cannot be written.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old: perdure needs 3.37 or newer; use a Python"
            " that is linked to a newer one"
        )
    if isinstance(path, Path):
        _check_writable(path)
    try:
        connection = _open(path, busy_seconds)
    except sqlite3.Error as error:
        raise storage_error(error) from error
    try:
        _configure(connection, path, busy_seconds)
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir():
        raise StorageReadOnly(f"the folder {path.parent} does not exist; create it, or fix the URL")
    if os.access(path, os.F_OK) and not os.access(path, os.W_OK):
        # SQLite would open it, and leave a log beside it that nobody can write either.
        raise StorageReadOnly(f"{path} cannot be written: it must be writable by this user")


def _open(path: Path | Memory, busy_seconds: float) -> sqlite3.Connection:
    if isinstance(path, Memory):
        return path.connect(busy_seconds)
    return sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )


def _configure(connection: sqlite3.Connection, path: Path | Memory, busy_seconds: float) -> None:
    # Memory has no log, and needs none.
    if isinstance(path, Path) and connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        # Before the mode is changed, which stays in the file.
        check_owner(connection, str(path))
        _use_wal(connection, busy_seconds)
    connection.execute("PRAGMA synchronous = FULL")
    # Not only around erasures: what an update leaves behind could not be found again.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {UNFOLDED_PAGES}")
    if sys.platform == "darwin":
        # There an fsync alone leaves the data in the drive's cache.
        connection.execute("PRAGMA fullfsync = ON")


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # SQLite itself does not wait here when several processes open a new file at once.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return
