from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from perdure.clock import Clock
from perdure.errors import EngineClosed, LeaseLost, StorageError
from perdure.observe import Observer
from perdure.storage.blobs import Blobs, BlobStore
from perdure.storage.postgres import arrays
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.failures import comes_back, passes, storage_error, unprepared
from perdure.storage.postgres.migrate import check_server, migrate
from perdure.storage.postgres.server_clock import ServerClock
from perdure.storage.postgres.single import for_one, takes_rows
from perdure.storage.queries import load_queries
from perdure.storage.rows import Rows
from perdure.storage.vault import OpenVault, Vault, admit

T = TypeVar("T")
Row = tuple[Any, ...]
Connection = AsyncConnection[Row]

OF_ONE: Final = "_of_one"
"""What is added to the name of a statement of many rows, to name that of a single one."""

_CONNECTIONS: Final = 8
_OPEN_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 1.0

_IDLE_LIMIT: Final = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
"""Ends the transaction of a process that was frozen inside one, with the locks that it holds."""


class Transaction:
    """A transaction under way, for statements that depend on what others returned."""

    def __init__(self, connection: Connection, sql: Mapping[str, bytes]) -> None:
        self._connection = connection
        self._sql = sql

    async def run(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run a named statement and return its rows, none for one that returns nothing."""
        return await fetch(self._connection, self._sql[name], parameters)

    async def change(self, name: str, parameters: Mapping[str, Any]) -> int:
        """Run a named statement and return how many rows it changed."""
        cursor = await self._connection.execute(self._sql[name], parameters, binary=True)
        return cursor.rowcount


class Database:
    """A PostgreSQL database: a pool of connections that are interchangeable.

    No connection keeps anything between two transactions, so that a pooler may stand in between. A
    statement whose connection was lost is sent again until `busy_seconds` have passed; what must
    not happen twice tells by itself whether it has happened. Commits are as durable as the server's
    `synchronous_commit` makes them; one where that is off is refused.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        vault: Vault | None = None,
        *,
        blobs: BlobStore | None = None,
    ) -> None:
        self.address = address
        self.clock = ServerClock(clock)
        self.observer = observer
        self.busy_seconds = busy_seconds
        self.rows = Rows(vault or OpenVault())
        self.blobs = Blobs(blobs, self.rows, self)
        self._vault = vault
        self._noted = vault is None
        queries = load_queries("postgres")
        of_one = {
            name + OF_ONE: for_one(query) for name, query in queries.items() if takes_rows(query)
        }
        self.sql: Mapping[str, bytes] = {
            name: address.statement(statement) for name, statement in {**queries, **of_one}.items()
        }
        self._probe = probe
        self.direct = True
        """Whether a connection stays with one process of the server, and so with what it knows."""
        self._reading: set[asyncio.Task[Any]] = set()
        self._writing: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._pool: AsyncConnectionPool[Connection] | None = None

    async def open(self, *, create: bool) -> None:
        """Check the server, bring the schema up to date and connect.

        Raises `StorageMissing` without `create` where there is no schema, `SchemaTooNew`, or a
        `StorageError` when the server is not to be had within 10 seconds.
        """

        async def prepare(connection: Connection, *, again: bool) -> None:
            del again
            self.clock.hear(await check_server(connection, self.sql, self.address.shown))
            await migrate(
                connection,
                self.sql,
                self.address,
                self._probe,
                create=create,
                wait_seconds=self.busy_seconds,
            )
            self.direct = await self._is_direct(connection)
            self._noted = self._vault is None or await self._admit(connection, self._vault)

        await self._insist(prepare, _OPEN_SECONDS, self._connect)
        self._pool = AsyncConnectionPool(
            self.address.conninfo,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=_CONNECTIONS,
            timeout=2.0,
            # The pool's own pauses grow with how long the server was away; whoever needs a
            # connection asks again sooner.
            reconnect_timeout=1.0,
            configure=_configure,
            open=False,
            name="perdure",
        )
        await self._pool.open()

    async def read(self, name: str, **parameters: Any) -> list[Row]:
        """Run a named query and return its rows."""

        async def query(connection: Connection, *, again: bool) -> list[Row]:
            del again
            return await fetch(connection, self.sql[name], parameters)

        # Apart, because a caller must not miss that it was cancelled: before Python 3.12, whoever
        # waits for a connection of the pool may, when it is there at the same moment.
        task = asyncio.create_task(self._insist(query, self.busy_seconds, self._borrow))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return await asyncio.shield(task)

    async def read_row(self, name: str, **parameters: Any) -> Row | None:
        """Run a named query and return its first row, or None."""
        rows = await self.read(name, **parameters)
        return rows[0] if rows else None

    async def document(self, place: str, piece: bytes | None, packing: int, stored: bytes) -> bytes:
        """Return a document from its last piece and its rest."""
        pieces: list[Any] = [] if piece is None else await self.read("read_pieces", piece=piece)
        return await self.blobs.document(place, pieces, packing, stored)

    async def write(
        self,
        name: str,
        parameters: Mapping[str, Any],
        what: str | Sequence[str],
        *,
        before: str | None = None,
    ) -> list[Row]:
        """Run a named statement as a transaction of its own, and return its rows.

        `what` names the writes to the probe. `before` is a query that comes first when the
        statement has to be sent again: the rows that it returns, if any, are what the statement
        returned the first time. A cancelled caller's statement is still run.

        Durable when it returns: what the statement wrote, fsynced.
        If it raises: a `StorageError`; after a `StorageBusy`, nobody knows whether it was written.
        """

        async def statement(connection: Connection, *, again: bool) -> list[Row]:
            if again and before is not None:
                rows = await fetch(connection, self.sql[before], parameters)
                if rows:
                    return rows
            return await fetch(connection, self.sql[name], parameters)

        return await self._written(statement, [what] if isinstance(what, str) else what)

    async def transact(self, job: Callable[[Transaction, bool], Awaitable[T]], what: str) -> T:
        """Run a job in a transaction; it is told whether it may have been committed before.

        Durable when it returns: what the job wrote, fsynced.
        If it raises: as `write`, or whatever the job raised, and nothing was written.
        """

        async def whole(connection: Connection, *, again: bool) -> T:
            async with connection.transaction():
                await connection.execute(_IDLE_LIMIT)
                return await job(Transaction(connection, self.sql), again)

        return await self._written(whole, [what])

    async def note_key(self) -> None:
        """Note which key seals, unless that is known: called before anything is sealed with it.

        Durable when it returns: the note, fsynced.
        """
        if self._noted:
            return
        keys = self.rows.vault.keys
        key = {"key_id": keys.current, "proof": keys.proofs[keys.current or ""]}
        await self.write("note_key", key, "note_key")
        self._noted = True

    async def note_blobs(self, names: Sequence[bytes]) -> None:
        """Note blobs that are about to be put. Durable when it returns: the notes, fsynced."""
        await self.write("note_blobs", {"names": [*names], "since": self.clock.now()}, "note_blobs")

    async def condemn_blobs(self, seconds: float, limit: int) -> Sequence[bytes]:
        """Return blobs that no row needs, and that none can need from now on.

        Durable when it returns: that none can.
        """
        row = {"before": self.clock.now() - seconds, "limit": limit}
        if await self.read("any_condemned", **row) == [(False,)]:
            return []
        await self.write("condemn_blobs", row, "condemn_blobs")
        return [name for (name,) in await self.read("condemned_blobs", **row)]

    async def forget_blobs(self, names: Sequence[bytes]) -> None:
        """Forget blobs that were deleted. Durable when it returns: that, fsynced."""
        await self.write("forget_blobs", {"names": [*names]}, "forget_blobs")

    async def _admit(self, connection: Connection, vault: Vault) -> bool:
        """Check the vault against the keys of the schema; return whether its own is among them."""
        rows = await fetch(connection, self.sql["list_keys"], {})
        noted = [(str(key_id), bytes(proof)) for key_id, proof in rows]
        ((used,),) = await fetch(connection, self.sql["holds_any"], {})
        admit(vault, noted, used=used)
        current = vault.keys.current
        return current is None or current in dict(noted)

    def fenced_off(self, run_id: str) -> LeaseLost:
        """Count a write that was refused because its run has another owner; return the signal."""
        self.observer.count("perdure_lease_fencing_rejected_total")
        return LeaseLost(run_id)

    async def rewrite(self) -> None:
        """Write every table anew that holds what users gave, while others wait."""

        async def work(connection: Connection, *, again: bool) -> None:
            del again
            await connection.execute(self.sql["vacuum_full"])

        await self._insist(work, self.busy_seconds, self._borrow)

    async def close(self) -> None:
        """Finish the writes under way and disconnect."""
        self._closed = True
        if self._writing:
            await asyncio.wait(self._writing)
        if self._reading:
            await asyncio.wait(self._reading, timeout=_LONGEST_PAUSE_SECONDS)
            await end(self._reading)
        if self._pool is not None:
            await self._pool.close()

    async def _written(self, work: Callable[..., Awaitable[T]], what: Sequence[str]) -> T:
        if self._closed:
            raise EngineClosed("the store is closed; use the App inside `async with app:`")
        task = asyncio.create_task(self._probed(work, what))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _probed(self, work: Callable[..., Awaitable[T]], what: Sequence[str]) -> T:
        for name in what:
            self._probe(f"commit.begin {name}")
        done = await self._insist(work, self.busy_seconds, self._borrow)
        for name in what:
            self._probe(f"commit.done {name}")
        return done

    async def _insist(
        self,
        work: Callable[..., Awaitable[T]],
        seconds: float,
        lend: Callable[[Callable[[Connection], Awaitable[T]]], Coroutine[Any, Any, T]],
    ) -> T:
        """Do some work on a connection, and again for as long as connections are lost."""
        began = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        again = False
        while True:
            try:
                return await lend(lambda connection, again=again: work(connection, again=again))
            except psycopg.Error as error:
                waited = time.monotonic() - began
                if comes_back(error):
                    seconds = max(seconds, self.busy_seconds)
                if not passes(error) or waited + pause > seconds:
                    raise storage_error(error, waited) from error
                if unprepared(error):
                    self.direct = False
                elif self._pool is not None:
                    await self._pool.check()
            again = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _is_direct(self, connection: Connection) -> bool:
        """Tell whether there is no pooler in between.

        A pooler gives clients a number of its own. Behind one a name may stand for what another
        client has prepared, and that would be run instead.
        """
        ((process,),) = await fetch(connection, self.sql["process"], {})
        return process == connection.info.backend_pid

    async def _connect(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with await AsyncConnection.connect(
            self.address.conninfo, autocommit=True, prepare_threshold=None
        ) as connection:
            return await work(connection)

    async def _borrow(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        if self._pool is None:
            raise StorageError("the store is not open")
        async with self._pool.connection() as connection:
            if not self.direct:
                connection.prepare_threshold = None
            return await work(connection)


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended, also those that miss a cancellation."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_LONGEST_PAUSE_SECONDS)


async def fetch(connection: Connection, sql: bytes, parameters: Mapping[str, Any]) -> list[Row]:
    """Run a statement and return its rows, none for one that returns nothing."""
    cursor = await connection.execute(sql, parameters, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


async def _configure(connection: Connection) -> None:
    connection.prepare_threshold = 2
    arrays.register(connection)
    # Behind a pooler it may come to hear what another client listens to, and would keep it.
    connection.add_notify_handler(_ignore)


def _ignore(hint: psycopg.Notify) -> None:
    del hint
