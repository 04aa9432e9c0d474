from __future__ import annotations

import sqlite3
from collections.abc import Callable

from perdure.errors import SchemaTooNew, StorageCorrupt
from perdure.storage.queries import load_migrations

APPLICATION_ID = 0x70657264
"""Marks the file as perdure's in the SQLite header ("perd")."""


def migrate(connection: sqlite3.Connection, path: str, probe: Callable[[str], None]) -> None:
    """Bring the schema up to this release's version.

    Safe when several processes open the file at once: each migration is one transaction that
    looks at the version again under the write lock.

    Raises `SchemaTooNew` for a file of a newer release and `StorageCorrupt` for another
    program's; neither is changed.
    """
    migrations = load_migrations("sqlite")
    newest = migrations[-1][0]
    version = _version(connection, path, newest)
    for number, script in migrations:
        if number <= version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection, path, newest) < number:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            probe(f"commit.begin migrate {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        probe(f"commit.done migrate {number}")


def check_owner(connection: sqlite3.Connection, path: str) -> int:
    """Return the schema version of a file, 0 for an empty one, without changing anything.

    Raises `StorageCorrupt` for another program's.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("PRAGMA schema_version").fetchone()
    # Last: whoever migrates the file at this moment writes it together with the other two.
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StorageCorrupt(
            f"{path} is a database of another program; give perdure a file of its own"
        )
    return int(version)


def _version(connection: sqlite3.Connection, path: str, newest: int) -> int:
    version = check_owner(connection, path)
    if version > newest:
        raise SchemaTooNew(
            f"{path} has schema version {version} and this release of perdure knows {newest};"
            " upgrade perdure on this machine"
        )
    return version


def _statements(script: str) -> list[str]:
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements
