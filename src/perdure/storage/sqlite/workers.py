from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.engine.workers import WorkerNews, WorkerRow
from perdure.errors import LeaseLost
from perdure.storage.liveness import Liveness
from perdure.storage.rows import worker_row
from perdure.storage.sqlite.database import Database, connect
from perdure.storage.sqlite.failures import storage_error
from perdure.storage.sqlite.memory import Memory


class SqliteWorkers:
    """The workers of one SQLite file, their leases and what becomes of the dead.

    A lease is timed by the host's monotonic clock, which every process shares and none can set.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._liveness = Liveness(_folder(database.path))
        self._renewing: sqlite3.Connection | None = None
        self._renewal = threading.Lock()

    async def register_worker(self, name: str, lease_seconds: float) -> str:
        """Make a worker known and return its holder, which no other worker has or will have.

        Durable when it returns: the lease, fsynced.
        """
        await self._db.note_key()
        row = worker_row(name, lease_seconds, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> None:
            # Counted from the write, which may have waited for another process's.
            until = self._db.clock.monotonic() + lease_seconds
            self._db.run(connection, "insert_worker", {**row, "lease_until": until})

        # The lock comes first: a row without one would look like a worker that cannot die.
        with self._liveness.holding(row["holder"]):
            await self._db.write(job, "register_worker")
        return row["holder"]

    def renew_worker(self, holder: str, lease_seconds: float) -> WorkerNews:
        """Extend the lease of a worker over all of its runs; called from a thread of its own.

        Durable when it returns: the renewal, fsynced.
        If it raises: `LeaseLost` when the lease was taken, or a `StorageError`.
        """
        with self._renewal:
            try:
                return self._renew(holder, lease_seconds)
            except sqlite3.Error as error:
                raise storage_error(error) from error

    async def retire_worker(self, holder: str) -> None:
        """Give up a worker's lease and every run it still owns.

        Durable when it returns: the release, fsynced.
        """
        await self._db.write(
            lambda connection: self._end(connection, holder, "released"), "retire_worker"
        )
        self._liveness.release(holder)

    async def sweep(self, holder: str) -> int:
        """Release the runs of workers that died or let their lease run out; return how many.

        Durable when it returns: the releases, fsynced.
        """
        released = 0
        now = self._db.clock.monotonic()
        for other, lease_seconds, lease_until in self._db.read("living_workers", holder=holder):
            dead = self._liveness.is_dead(other)
            if dead or not _stands(now, lease_seconds, lease_until):
                released += await self._db.write(
                    lambda connection, other=other, dead=dead: self._end(
                        connection, other, "lost", dead=dead
                    ),
                    "sweep",
                )
            if dead:
                self._liveness.forget(other)
            elif not _stands(now, lease_seconds, lease_until):
                self._liveness.release(other)
        return released

    async def list_workers(self) -> Sequence[WorkerRow]:
        """Return the workers that nobody has found gone, oldest first."""
        now = self._db.clock.monotonic()
        rows = self._db.read("list_workers")
        return [self._worker_row(row, now) for row in rows]

    def close_workers(self) -> None:
        """Let go of the locks and of the renewing connection."""
        with self._renewal:
            self._liveness.close()
            if self._renewing is not None:
                self._renewing.close()
                self._renewing = None

    def _renew(self, holder: str, lease_seconds: float) -> WorkerNews:
        # A connection of its own: a renewal waits neither for the event loop nor for its writes.
        if self._renewing is None:
            self._renewing = connect(self._db.path, lease_seconds / 10)
        connection = self._renewing
        connection.execute("BEGIN IMMEDIATE")
        try:
            until = self._db.clock.monotonic() + lease_seconds
            row = {"holder": holder, "lease_until": until, "lease_seconds": lease_seconds}
            if self._db.run(connection, "renew_worker", row).rowcount != 1:
                raise LeaseLost("*")
            held = self._db.run(connection, "held_runs", row).fetchall()
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return WorkerNews(
            frozenset((run_id, generation) for run_id, generation, _ in held),
            frozenset(run_id for run_id, _, cancelled in held if cancelled),
        )

    def _end(
        self, connection: sqlite3.Connection, holder: str, ending: str, *, dead: bool = True
    ) -> int:
        row: dict[str, Any] = {
            "holder": holder,
            "ending": ending,
            "dead": dead,
            "monotonic": self._db.clock.monotonic(),
            "now": self._db.clock.now(),
        }
        if self._db.run(connection, "end_worker", row).rowcount != 1:
            return 0
        self._db.run(connection, "end_attempts_of", row)
        return self._db.run(connection, "release_runs_of", row).rowcount

    def _worker_row(self, row: tuple[Any, ...], now: float) -> WorkerRow:
        holder, name, pid, host, lease_seconds, lease_until, started_at, runs = row
        alive = _stands(now, lease_seconds, lease_until) and not self._liveness.is_dead(holder)
        return WorkerRow(holder, name, pid, host, alive, runs, started_at)


def _folder(path: Path | Memory) -> Path | None:
    """Return where the workers of a file keep their locks; those of memory die together."""
    return path.with_name(f"{path.name}.workers") if isinstance(path, Path) else None


def _stands(now: float, lease_seconds: float, lease_until: float) -> bool:
    """Tell whether a lease stands; one that ends too far ahead is from before a reboot."""
    return lease_until - lease_seconds - 1 <= now <= lease_until
