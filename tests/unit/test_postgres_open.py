"""What a PostgreSQL server has to be, and what is said of one that is not."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from perdure import App
from perdure.clock import SystemClock
from perdure.errors import (
    InvalidUrl,
    SchemaTooNew,
    StorageError,
    StorageMissing,
    StorageReadOnly,
)
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import PostgresStorage
from perdure.storage.postgres.address import Address
from perdure.storage.queries import load_migrations, load_queries
from perdure.urls import shown
from tests.harness import run
from tests.storages import kept_on_server, look, schema_of, url_of

NEWEST = load_migrations("postgres")[-1][0]
_ANY, _TIME = 0, 701  # types by their numbers; a driver sends a float as the second
_UTILITY = ("CREATE SCHEMA", "SET LOCAL", "VACUUM")
_PARAMETER = re.compile(r"%\((\w+)\)s")


def _is_time(parameter: str, statement: str) -> bool:
    named = parameter in {"now", "until"} or parameter.endswith(("_at", "_seconds"))
    return named and f"%({parameter})s::" not in statement


@pytest.fixture
def place(postgres: str, tmp_path: Path) -> Iterator[Path]:
    """Name a schema that is not there yet."""
    with kept_on_server(tmp_path, postgres):
        yield tmp_path


async def opened(url: str, *, create: bool = True) -> None:
    store = PostgresStorage(url, SystemClock(), Observer(), busy_seconds=10, probe=no_probe)
    try:
        await store.open(create=create)
        await store.list_workers()
    finally:
        await store.close()


def changed(url: str, **parts: str) -> str:
    """Return a URL with another part, such as `path` or `netloc`."""
    return urlunsplit(urlsplit(url)._replace(**parts))


@contextmanager
def made(url: str, make: str, unmake: str) -> Iterator[None]:
    """Have something at a server for as long as the block."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(make.encode())
        try:
            yield
        finally:
            connection.execute(unmake.encode())


def test_stores_that_open_at_once_make_one_schema(place: Path) -> None:
    async def main() -> None:
        await asyncio.gather(*(opened(url_of(place)) for _ in range(8)))
        await asyncio.gather(*(opened(url_of(place), create=False) for _ in range(2)))

    run(main())
    versions = [number for number, _ in load_migrations("postgres")]
    found = look(place, "SELECT version FROM migrations ORDER BY version")
    assert found == [(version,) for version in versions]


def test_a_schema_that_is_not_there_is_made_only_where_that_is_wanted(place: Path) -> None:
    complaint = f"there is no schema '{schema_of(place)}' at .*: check the URL, or start a run"
    with pytest.raises(StorageMissing, match=complaint):
        run(opened(url_of(place), create=False))
    assert look(place, "SELECT to_regnamespace(?)", schema_of(place)) == [(None,)]


def test_a_newer_schema_is_refused_and_untouched(place: Path) -> None:
    run(opened(url_of(place)))
    look(place, "INSERT INTO migrations (version) VALUES (?)", NEWEST + 1)
    with pytest.raises(SchemaTooNew, match=f"version {NEWEST + 1} .* knows {NEWEST}: upgrade"):
        run(opened(url_of(place)))
    assert look(place, "SELECT max(version) FROM migrations") == [(NEWEST + 1,)]


def test_a_migration_that_fails_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [*load_migrations("postgres"), (NEWEST + 1, "CREATE TABLE perdure.runs (a int);")]
    name = "perdure.storage.postgres.migrate.load_migrations"
    monkeypatch.setattr(name, lambda dialect: broken)
    with pytest.raises(StorageError, match='"runs" already exists'):
        run(opened(url_of(place)))
    assert look(place, "SELECT to_regnamespace(?)", schema_of(place)) == [(None,)]


def test_schemas_of_one_database_know_nothing_of_one_another(
    postgres: str, place: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()

    async def main() -> None:
        one, two = App(url_of(place)), App(url_of(other))

        @one.run(version=1, name="work")
        @two.run(version=1, name="work")
        async def work(context: object) -> None: ...

        async with one.connect(), two.connect():
            await one.start("work", run_id="run-1")
            assert [row.run_id for row in await one.list()] == ["run-1"]
            assert await two.list() == []

    with kept_on_server(other, postgres):
        run(main())


def test_who_owns_the_schema_needs_no_other_right(postgres: str, place: Path) -> None:
    role = f"t_{secrets.token_hex(6)}"
    url = changed(url_of(place), netloc=f"{role}@{urlsplit(postgres).netloc.rpartition('@')[2]}")
    with made(postgres, f"CREATE ROLE {role} LOGIN", f"DROP ROLE {role}"):
        with pytest.raises(StorageReadOnly, match="the user of the URL needs to own the schema"):
            run(opened(url))
        with made(
            postgres,
            f"CREATE SCHEMA {schema_of(place)} AUTHORIZATION {role}",
            f"DROP SCHEMA {schema_of(place)} CASCADE",
        ):
            run(opened(url))
            run(opened(url, create=False))


@pytest.mark.parametrize(
    ("part", "kind", "complaint"),
    [
        ("nobody@", StorageError, 'refuses the connection .*role "nobody" does not exist'),
        ("/nowhere", StorageMissing, 'refuses the connection .*database "nowhere" does not exist'),
    ],
)
def test_who_is_not_let_in_is_told_at_once(
    postgres: str, part: str, kind: type[StorageError], complaint: str
) -> None:
    host = urlsplit(postgres).netloc.rpartition("@")[2]
    parts = {"path": part} if part.startswith("/") else {"netloc": part + host}
    with pytest.raises(kind, match=f"{complaint}.*: check the user, the password"):
        run(opened(changed(postgres, **parts)))


def test_a_server_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.storage.postgres.database._OPEN_SECONDS", 0.05)
    with pytest.raises(StorageError, match=r"127\.0\.0\.1.* check that it runs at the host"):
        run(opened("postgresql://127.0.0.1:1/x"))


@pytest.mark.parametrize(
    ("setting", "kind", "complaint"),
    [
        ("synchronous_commit=off", StorageError, "a crash of the server loses what it ackn"),
        ("default_transaction_read_only=on", StorageReadOnly, "on a primary server"),
    ],
)
def test_a_server_that_does_not_keep_what_it_says_is_refused(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    kind: type[StorageError],
    complaint: str,
) -> None:
    monkeypatch.setattr("perdure.storage.postgres.database._OPEN_SECONDS", 0.05)
    with pytest.raises(kind, match=complaint):
        run(opened(f"{url_of(place)}&options={quote(f'-c {setting}')}"))
    assert look(place, "SELECT to_regnamespace(?)", schema_of(place)) == [(None,)]


def test_a_database_that_is_not_in_utf_8_is_refused(postgres: str) -> None:
    name = f"t_{secrets.token_hex(6)}"
    make = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
    with (
        made(postgres, make, f"DROP DATABASE {name} WITH (FORCE)"),
        pytest.raises(StorageError, match="create one with ENCODING 'UTF8'"),
    ):
        run(opened(changed(postgres, path=f"/{name}")))


def test_every_statement_can_be_prepared(place: Path) -> None:
    run(opened(url_of(place)))
    address = Address(url_of(place))
    with closing(psycopg.connect(address.conninfo)) as connection:
        for query, statement in load_queries("postgres").items():
            if statement.startswith(_UTILITY):
                continue
            names = list(dict.fromkeys(_PARAMETER.findall(statement)))
            sql = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement)  # noqa: B023
            sql = address.named(sql).replace("%%", "%")
            kinds = [_TIME if _is_time(name, statement) else _ANY for name in names]
            prepared = connection.pgconn.prepare(b"", sql.encode(), kinds)
            assert not prepared.error_message, (query, prepared.error_message)
            connection.rollback()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://u@h/d?schema=Bad", "'Bad' cannot be the schema"),
        ("postgresql://u@h/d?schema=", "'' cannot be the schema"),
        ('postgresql://u@h/d?schema=a"b', "cannot be the schema"),
        ("postgresql://u@h:old/d", "the port 'old' is none: it is a number up to 65535"),
        ("postgresql://u@h,i/d?port=5432,0", "the port '0' is none"),
        ("postgresql://u@h/d?what=1", 'invalid URI query parameter: "what"'),
        ("postgresql://u:hidden@[::1]x/d", "unexpected character"),
    ],
)
def test_a_url_that_postgresql_does_not_take_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidUrl, match=re.escape(complaint)) as refused:
        App(url)
    assert "hidden" not in str(refused.value)


def test_the_rest_of_a_url_is_libpqs() -> None:
    address = Address("postgres://u:p%40@h1,h2:5433/d?schema=mine&sslmode=require")
    assert address.schema == "mine"
    known = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    told = {name: known[name] for name in ("user", "password", "host", "port", "dbname", "sslmode")}
    assert told == {
        "user": "u",
        "password": "p@",
        "host": "h1,h2",
        "port": ",5433",
        "dbname": "d",
        "sslmode": "require",
    }
    by_socket = Address("postgresql:///d?host=/run/postgresql")
    assert by_socket.shown == "/run/postgresql:5432/d"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:hidden@h:1/d?schema=x", "postgresql://u:***@h:1/d?schema=x"),
        ("postgresql://u@h/d?password=hidden&schema=x", "postgresql://u@h/d?password=***&schema=x"),
        ("postgresql:///d", "postgresql:///d"),
        ("sqlite:////a:b@c/runs.db", "sqlite:////a:b@c/runs.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, told: str) -> None:
    assert shown(url) == told
