from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.errors import LockNotAvailable

from perdure.errors import (
    SchemaTooNew,
    StorageBusy,
    StorageError,
    StorageMissing,
    StorageReadOnly,
)
from perdure.storage.postgres.address import Address
from perdure.storage.queries import load_migrations

Connection = AsyncConnection[tuple[Any, ...]]

_OLDEST_SERVER: Final = 130000
_IDLE_SECONDS: Final = 10.0
"""After which the server ends the transaction of a process that was frozen inside a migration."""

_STATEMENT_SECONDS: Final = 600.0
_LONGEST_MS: Final = 2**31 - 1


async def check_server(connection: Connection, sql: Mapping[str, bytes], shown: str) -> float:
    """Check that a server keeps what it acknowledges; return its wall time.

    Raises `StorageReadOnly` for a standby, and `StorageError` for one that is too old, is not in
    UTF-8, or acknowledges what is not on the disk yet.
    """
    if connection.info.server_version < _OLDEST_SERVER:
        raise StorageError(
            f"the server at {shown} is PostgreSQL {connection.info.server_version // 10000}:"
            " perdure needs 13 or newer"
        )
    row = await (await connection.execute(sql["server"])).fetchone()
    assert row is not None
    _, synchronous, fsync, encoding, _, now, standby = row
    if standby:
        raise StorageReadOnly(f"the server at {shown} is a standby: use the URL of the primary")
    if encoding != "UTF8":
        raise StorageError(
            f"the database at {shown} is encoded in {encoding}: create one with ENCODING 'UTF8'"
        )
    for name, value in (("synchronous_commit", synchronous), ("fsync", fsync)):
        if value == "off":
            raise StorageError(
                f"{name} is off at {shown}, so a crash of the server loses what it acknowledged:"
                f" turn it on, for instance with ALTER DATABASE … SET {name} = on"
            )
    return float(now)


async def migrate(
    connection: Connection,
    sql: Mapping[str, bytes],
    address: Address,
    probe: Callable[[str], None],
    *,
    create: bool,
    wait_seconds: float,
) -> None:
    """Bring the schema up to this release's version.

    Safe when several processes open the database at once: all of it is one transaction behind an
    advisory lock. Raises `SchemaTooNew` for a schema of a newer release, and without `create`
    `StorageMissing` where there is none; neither is changed. Raises `StorageBusy` when another one
    migrates for longer than `wait_seconds`.
    """
    newest = load_migrations("postgres")[-1][0]
    _, version = await _found(connection, sql, address)
    if version == 0 and not create:
        raise StorageMissing(
            f"there is no schema {address.schema!r} at {address.shown}: check the URL, or start a"
            " run to make one"
        )
    if version < newest:
        limits = {
            "lock_ms": _milliseconds(wait_seconds),
            "idle_ms": _milliseconds(_IDLE_SECONDS),
            "statement_ms": _milliseconds(max(_STATEMENT_SECONDS, wait_seconds)),
        }
        try:
            async with connection.transaction():
                await connection.execute(sql["limit_migration"], limits)
                await connection.execute(sql["lock_migrations"])
                version = await _make(connection, sql, address)
                probe(f"commit.begin migrate {newest}")
        except LockNotAvailable as error:
            raise await _busy(connection, sql, address, wait_seconds) from error
        probe(f"commit.done migrate {newest}")
    if version > newest:
        raise SchemaTooNew(
            f"the schema {address.schema!r} at {address.shown} has version {version} and this"
            f" release of perdure knows {newest}: upgrade perdure on this machine"
        )


async def _make(connection: Connection, sql: Mapping[str, bytes], address: Address) -> int:
    """Make what is missing of the schema, under the lock; return the version that was there."""
    there, version = await _found(connection, sql, address)
    if not there:
        # Making one needs a right that who owns one may lack, also where nothing is made.
        await connection.execute(sql["create_schema"])
    if version == 0:
        await connection.execute(sql["create_migrations"])
    for number, script in load_migrations("postgres"):
        if number > version:
            # Without parameters, so that a script may hold several statements.
            await connection.execute(address.named(script).encode())
            await connection.execute(sql["note_migration"], {"version": number})
    return version


async def _busy(
    connection: Connection, sql: Mapping[str, bytes], address: Address, waited_seconds: float
) -> StorageBusy:
    """Return the error of a lock that was not to be had, with the processes that hold it."""
    holders = await (await connection.execute(sql["who_migrates"])).fetchall()
    named = [
        f"process {pid} of the server ({name or 'unnamed'!r}, connected from {host or 'its host'})"
        for pid, name, host in holders
    ]
    return StorageBusy(
        f"the schema {address.schema!r} at {address.shown} could not be migrated within"
        f" {waited_seconds:g} seconds, because {' and '.join(named) or 'a program'} holds"
        f" {'the lock of migrations' if named else 'a lock on its tables'}: wait for its end, or"
        " end it with pg_terminate_backend"
    )


def _milliseconds(seconds: float) -> str:
    # Zero would be no limit at all.
    return str(int(min(max(seconds * 1000, 1), _LONGEST_MS)))


async def _found(
    connection: Connection, sql: Mapping[str, bytes], address: Address
) -> tuple[bool, int]:
    """Return whether the schema is there, and its version, 0 for an empty one."""
    row = await (await connection.execute(sql["has_schema"], {"schema": address.schema})).fetchone()
    assert row is not None
    there, begun = row
    if not begun:
        return there, 0
    row = await (await connection.execute(sql["schema_version"])).fetchone()
    assert row is not None
    return there, int(row[0])
