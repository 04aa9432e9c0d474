"""The store of a folder: a SQLite file in it, or a schema of a PostgreSQL server that it names."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

SQLITE_ONLY: Final = pytest.mark.parametrize("storage", ["sqlite"], indirect=True)
"""Marks what looks into SQLite itself, or turns the clock of its leases."""

FILE: Final = "runs.db"
_MARK: Final = "storage.url"
_AS_TEXT: Final = re.compile(r"CAST\((\w+(?:\.\w+)?) AS TEXT\)")
_BYTES: Final = re.compile(r"\bx'([0-9a-f]*)'")


def url_of(folder: Path, file: str = FILE) -> str:
    """Return the URL of a folder's store."""
    mark = folder / _MARK
    return mark.read_text() if mark.exists() else f"sqlite:///{folder / file}"


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
    with _connected(folder) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema_of(folder)} CASCADE".encode())


def schema_of(folder: Path) -> str:
    """Return the schema of a folder's store at its server."""
    return parse_qs(urlsplit(url_of(folder)).query)["schema"][0]


def exists(folder: Path, file: str = FILE) -> bool:
    """Return whether anybody has made a folder's store."""
    if not on_server(folder):
        return (folder / file).exists() and bool(look(folder, "PRAGMA user_version", file=file))
    named = f"{schema_of(folder)}.migrations"
    return look(folder, "SELECT to_regclass(?) IS NOT NULL", named) == [(True,)]


def look(folder: Path, statement: str, *parameters: Any, file: str = FILE) -> list[Any]:
    """Run a statement on a connection of its own, as another process would.

    It is SQLite's SQL; what PostgreSQL says in another way is translated.
    """
    if on_server(folder):
        with _connected(folder) as connection:
            cursor = connection.execute(_translated(statement).encode(), parameters)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(folder / file, isolation_level=None, timeout=30)) as connection:
        return connection.execute(statement, parameters).fetchall()


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
