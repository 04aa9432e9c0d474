"""The store of a folder: a SQLite file in it, or a schema of a PostgreSQL server that it names.

A folder may also name a server of Temporal, which has its runs executed.
"""

from __future__ import annotations

import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from perdure import App
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.workers import lock_folder

SQLITE_ONLY: Final = pytest.mark.parametrize("storage", ["sqlite"], indirect=True)
"""Marks what looks into SQLite itself, or turns the clock of its leases."""

FILE: Final = "runs.db"
_PATIENCE_SECONDS: Final = 30.0
_MARK: Final = "storage.url"
_DISPATCHED: Final = "temporal.url"
_AS_TEXT: Final = re.compile(r"CAST\((\w+(?:\.\w+)?) AS TEXT\)")
_BYTES: Final = re.compile(r"\bx'([0-9a-f]*)'")


def url_of(folder: Path, file: str = FILE) -> str:
    """Return the URL of a folder's store."""
    mark = folder / _MARK
    return mark.read_text() if mark.exists() else f"sqlite:///{folder / file}"


def app_at(folder: Path, **options: Any) -> App:
    """Return an App on a folder's store, and on Temporal if the folder names a server of it."""
    mark = folder / _DISPATCHED
    if not mark.exists():
        return App(url_of(folder), **options)
    return App(mark.read_text(), store=url_of(folder), **options)


def have_dispatched(folder: Path, address: str) -> None:
    """Have Temporal decide who executes the runs of a folder's store."""
    queue = f"t-{secrets.token_hex(6)}"
    url = f"temporal://{address}/default?task_queue={queue}&heartbeat_seconds=1"
    (folder / _DISPATCHED).write_text(url)


def is_dispatched(folder: Path) -> bool:
    """Return whether Temporal decides who executes the runs of a folder's store."""
    return (folder / _DISPATCHED).exists()


def on_server(folder: Path) -> bool:
    """Return whether a folder's store is on a PostgreSQL server."""
    return (folder / _MARK).exists()


def put_on_server(folder: Path, url: str) -> None:
    """Have a folder's store in a schema of its own at a server."""
    schema = f"t_{secrets.token_hex(6)}"
    joint = "&" if "?" in url else "?"
    (folder / _MARK).write_text(f"{url}{joint}schema={schema}")


@contextmanager
def kept_on_server(folder: Path, url: str) -> Iterator[None]:
    """Have a folder's store at a server for as long as the block."""
    put_on_server(folder, url)
    try:
        yield
    finally:
        drop(folder)


def drop(folder: Path) -> None:
    """Delete the schema of a folder."""
    look(folder, f"DROP SCHEMA IF EXISTS {schema_of(folder)} CASCADE")
    # Workers that were killed leave their locks.
    shutil.rmtree(lock_folder(Address(url_of(folder))), ignore_errors=True)


def schema_of(folder: Path) -> str:
    """Return the schema of a folder's store at its server."""
    return parse_qs(urlsplit(url_of(folder)).query)["schema"][0]


def exists(folder: Path, table: str, file: str = FILE) -> bool:
    """Return whether anybody has made a table of a folder's store."""
    if on_server(folder):
        named = f"{schema_of(folder)}.{table}"
        return look(folder, "SELECT to_regclass(?) IS NOT NULL", named) == [(True,)]
    made = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return (folder / file).exists() and bool(look(folder, made, table, file=file))


def look(folder: Path, statement: str, *parameters: Any, file: str = FILE) -> list[Any]:
    """Run a statement on a connection of its own, as another process would.

    It is SQLite's SQL; what PostgreSQL says in another way is translated.
    """
    if on_server(folder):
        return _look_at_server(folder, _translated(statement).encode(), parameters)
    with closing(sqlite3.connect(folder / file, isolation_level=None, timeout=30)) as connection:
        return connection.execute(statement, parameters).fetchall()


@contextmanager
def held(folder: Path, *, wait: bool = True, file: str = FILE) -> Iterator[bool]:
    """Keep everybody from writing to a folder's store; say whether that could be had at once."""
    if on_server(folder):
        with _connected(folder) as connection, connection.transaction():
            how = "" if wait else "NOWAIT"
            tables = "workers, runs, attempts, records, timers, receipts"
            try:
                connection.execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE {how}".encode())
            except psycopg.errors.LockNotAvailable:
                yield False
            else:
                yield True
        return
    timeout = 30.0 if wait else 0.1
    with closing(sqlite3.connect(folder / file, isolation_level=None, timeout=timeout)) as holder:
        try:
            holder.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            if wait:
                raise
            yield False
        else:
            yield True
            holder.execute("ROLLBACK")


class Places:
    """Where the stores of some folders are: in files, or in schemas of one server.

    `temporal` is the address of the server that has their runs executed, or None.
    """

    def __init__(self, server: str | None = None, temporal: str | None = None) -> None:
        self.server = server
        self.temporal = temporal
        self._used: list[Path] = []

    def use(self, folder: Path) -> None:
        """Have the store of a folder here."""
        if self.server is not None:
            put_on_server(folder, self.server)
            self._used.append(folder)
        if self.temporal is not None:
            have_dispatched(folder, self.temporal)

    def drop(self) -> None:
        """Delete every schema."""
        for folder in self._used:
            drop(folder)


def _look_at_server(folder: Path, statement: bytes, parameters: Sequence[Any]) -> list[Any]:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with _connected(folder) as connection:
                cursor = connection.execute(statement, parameters)
                return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError:
            # Some tests kill their server.
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


def _translated(statement: str) -> str:
    statement = statement.replace("%", "%%").replace("?", "%s")
    statement = _AS_TEXT.sub(r"convert_from(\1, 'UTF8')", statement)
    return _BYTES.sub(r"'\\x\1'::bytea", statement)


@contextmanager
def _connected(folder: Path) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    url, _, _ = url_of(folder).rpartition("schema=")
    connection = psycopg.connect(url.rstrip("?&"), autocommit=True)
    with closing(connection):
        connection.execute(f"SET search_path = {schema_of(folder)}, pg_catalog".encode())
        yield connection
