from __future__ import annotations

import getpass
import hashlib
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from perdure.engine.workers import WorkerNews, WorkerRow
from perdure.errors import LeaseLost, StorageBusy
from perdure.storage.liveness import Liveness
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.cutoff import cut_off_after
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.failures import storage_error
from perdure.storage.postgres.hints import Hints
from perdure.storage.rows import worker_row

_PATIENT_SHARE: Final = 0.2
"""For how much of its lease a worker waits for a renewal before it asks for another one."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class PostgresWorkers:
    """The workers of one PostgreSQL schema, their leases and what becomes of the dead.

    A lease is timed by the server's clock. On the worker's own machine its death is noticed at
    once, by a lock that its kernel frees.
    """

    hints: Hints

    def __init__(self, database: Database) -> None:
        self._db = database
        self._machine = _machine()
        self._liveness = Liveness(lock_folder(database.address))
        self._renewing: psycopg.Connection[tuple[Any, ...]] | None = None
        self._renewal = threading.Lock()

    async def register_worker(self, name: str, lease_seconds: float) -> str:
        """Make a worker known and return its holder, which no other worker has or will have.

        Durable when it returns: the lease, fsynced.
        """
        await self._db.note_key()
        row = worker_row(name, float(lease_seconds), self._db.clock.now())
        row["machine"] = self._machine
        # The lock comes first: a row without one would look like a worker that cannot die.
        with self._liveness.holding(row["holder"]):
            await self._db.write("insert_worker", row, "register_worker")
        return row["holder"]

    def renew_worker(self, holder: str, lease_seconds: float) -> WorkerNews:
        """Extend the lease of a worker over all of its runs; called from a thread of its own.

        Durable when it returns: the renewal, fsynced.
        If it raises: `LeaseLost` when the lease was taken, or a `StorageError`.
        """
        with self._renewal:
            try:
                return self._renew(holder, float(lease_seconds))
            except psycopg.Error as error:
                self._hang_up()
                raise storage_error(error) from error

    async def retire_worker(self, holder: str) -> None:
        """Give up a worker's lease and every run it still owns.

        Durable when it returns: the release, fsynced.
        """
        await self._end(holder, "released", dead=True, what="retire_worker")
        self._liveness.release(holder)

    async def sweep(self, holder: str) -> int:
        """Release the runs of workers that died or let their lease run out; return how many.

        Durable when it returns: the releases, fsynced.
        """
        released = 0
        for other, machine, expired in await self._db.read("other_workers", holder=holder):
            dead = machine == self._machine and self._liveness.is_dead(other)
            if not dead and not expired:
                continue
            with suppress(StorageBusy):  # it is in the middle of a write, and not as dead as that
                released += await self._end(other, "lost", dead=dead, what="sweep")
            if dead:
                self._liveness.forget(other)
            else:
                self._liveness.release(other)
        return released

    async def list_workers(self) -> Sequence[WorkerRow]:
        """Return the workers that nobody has found gone, oldest first."""
        return [self._worker_row(row) for row in await self._db.read("list_workers")]

    def close_workers(self) -> None:
        """Let go of the locks and of the renewing connection."""
        with self._renewal:
            self._liveness.close()
            self._hang_up()

    def _renew(self, holder: str, lease_seconds: float) -> WorkerNews:
        # A connection of its own: a renewal waits neither for the event loop nor for its writes.
        if self._renewing is None:
            self._renewing = psycopg.connect(
                self._db.address.conninfo,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(2, int(lease_seconds / 4)),
            )
        connection = self._renewing
        row = {"holder": holder, "lease_seconds": lease_seconds}
        with cut_off_after(connection, lease_seconds * _PATIENT_SHARE):
            renewed = connection.execute(self._db.sql["renew_worker"], row).fetchone()
            if renewed is None:
                raise LeaseLost("*")
            held = connection.execute(self._db.sql["held_runs"], row).fetchall()
        self._db.clock.hear(renewed[0])
        return WorkerNews(
            frozenset((run_id, generation) for run_id, generation, _ in held),
            frozenset(run_id for run_id, _, cancelled in held if cancelled),
        )

    def _hang_up(self) -> None:
        if self._renewing is not None:
            self._renewing.close()
            self._renewing = None

    async def _end(self, holder: str, ending: str, *, dead: bool, what: str) -> int:
        row: Mapping[str, Any] = {
            "holder": holder,
            "ending": ending,
            "dead": dead,
            "now": self._db.clock.now(),
        }

        async def job(transaction: Transaction, again: bool) -> int:  # noqa: FBT001
            await transaction.run("impatient", {})
            if await transaction.change("end_worker", row) != 1 and not again:
                return 0
            await transaction.run("end_attempts_of", row)
            return await transaction.change("release_runs_of", row)

        released = await self._db.transact(job, what)
        if released:
            self.hints.tell()
        return released

    def _worker_row(self, row: tuple[Any, ...]) -> WorkerRow:
        holder, name, pid, host, machine, stands, started_at, runs = row
        alive = stands and not (machine == self._machine and self._liveness.is_dead(holder))
        return WorkerRow(holder, name, pid, host, alive, runs, started_at)


def _machine() -> str:
    """Return what tells this machine, since it was started, from every other."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return socket.gethostname()


def lock_folder(address: Address) -> Path:
    """Return where the processes of this machine keep the locks of a schema's workers."""
    name = hashlib.sha256(f"{address.shown} {address.schema}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"perdure-{getpass.getuser()}-{name}"
