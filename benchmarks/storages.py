"""Where a row may put its databases: files of SQLite, or databases of a PostgreSQL server."""

from __future__ import annotations

import itertools
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

SQLITE, POSTGRES = "SQLite", "PostgreSQL"

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_SCHEME = "sqlite:///"
_RELATIONS = (
    "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables"
)


class Storage(Protocol):
    """Makes databases, each fresh, and says how they keep what was committed."""

    name: str

    def create(self, folder: Path) -> str:
        """Make a database for whatever works in this folder, and return its URL."""
        ...

    def durability(self, folder: Path) -> str:
        """Say with which settings a commit reaches the disk."""
        ...

    def drop(self) -> None:
        """Remove what was created, where that is not in the folder."""
        ...


@dataclass
class Sqlite:
    """A file in the folder itself."""

    name: str = SQLITE

    def create(self, folder: Path) -> str:
        return f"{_SCHEME}{folder / 'runs.db'}"

    def durability(self, folder: Path) -> str:
        """Read the settings from a connection that is opened as perdure opens its own."""
        # Here, so that a process of somebody else's is not made larger by ours.
        from perdure.storage.sqlite import database

        connection = database.connect(folder / "settings.db", 1.0)
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        connection.close()
        return f"{journal.upper()}, synchronous={_SYNCHRONOUS[synchronous]}, floor and perdure"

    def drop(self) -> None:
        pass


class Postgres:
    """A database of its own for each, in a server that somebody else started."""

    name = POSTGRES

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[str] = []
        self._numbers = itertools.count(1)

    def create(self, folder: Path) -> str:
        name = f"perdure_benchmark_{os.getpid()}_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name}")
        self._made.append(name)
        parts = urlsplit(self.url)
        return parts._replace(path=f"/{name}").geturl()

    def durability(self, folder: Path) -> str:
        shown = {
            name: self._execute(f"SHOW {name}")
            for name in ("server_version", "synchronous_commit", "fsync", "full_page_writes")
        }
        version = shown.pop("server_version")
        settings = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"{version}, {settings}, for everybody"

    def drop(self) -> None:
        while self._made:
            self._execute(f"DROP DATABASE IF EXISTS {self._made.pop()} WITH (FORCE)")

    def _execute(self, statement: str) -> Any:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


def storages(server: str | None) -> dict[str, Storage]:
    """Return the storages that there are, by name; without a server, SQLite alone."""
    found: dict[str, Storage] = {SQLITE: Sqlite()}
    if server is not None:
        found[POSTGRES] = Postgres(server)
    return found


def file_of(url: str) -> Path:
    """Return the file that a URL of SQLite names."""
    return Path(url.removeprefix(_SCHEME))


def is_file(url: str) -> bool:
    return url.startswith(_SCHEME)


def table_of(url: str, name: str) -> str:
    """Return what a table of perdure is called in a database."""
    return name if is_file(url) else f"perdure.{name}"


def size(url: str) -> int:
    """Return the bytes that a database takes on the disk, its log folded into it."""
    if not is_file(url):
        return int(query(url, _RELATIONS)[0][0])
    if not file_of(url).exists():
        return 0
    query(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    return file_of(url).stat().st_size


def query(url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of one statement, its parameters as `?`, connection and all."""
    if is_file(url):
        connection = sqlite3.connect(file_of(url), timeout=30)
        try:
            return connection.execute(statement, parameters).fetchall()
        finally:
            connection.close()
    import psycopg

    with psycopg.connect(url, autocommit=True) as server:
        # bytes, because a statement that is no literal is no text to psycopg
        return server.execute(statement.replace("?", "%s").encode(), parameters).fetchall()
