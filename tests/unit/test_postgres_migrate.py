"""How long a migration waits for another one, and how long others wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from perdure.clock import SystemClock
from perdure.errors import StorageBusy
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import PostgresStorage
from perdure.storage.queries import load_migrations, load_queries
from tests.harness import run
from tests.storages import kept_on_server, look, url_of

NEWEST = load_migrations("postgres")[-1][0]
LOCK = load_queries("postgres")["lock_migrations"].encode()


@pytest.fixture
def place(postgres: str, tmp_path: Path) -> Iterator[Path]:
    with kept_on_server(tmp_path, postgres):
        yield tmp_path


async def opened(
    place: Path, *, busy_seconds: float = 10, probe: Callable[[str], None] = no_probe
) -> None:
    store = PostgresStorage(
        url_of(place), SystemClock(), Observer(), busy_seconds=busy_seconds, probe=probe
    )
    try:
        await store.open()
    finally:
        await store.close()


def test_who_keeps_a_migration_waiting_is_named(postgres: str, place: Path) -> None:
    with closing(psycopg.connect(postgres, application_name="someone")) as other:
        other.execute(LOCK)
        holder = f"process {other.info.backend_pid} of the server \\('someone', connected from"
        complaint = f"not be migrated within 0.05 seconds, because {holder} .* lock of migrations"
        with pytest.raises(StorageBusy, match=complaint):
            run(opened(place, busy_seconds=0.05))
        other.rollback()
        run(opened(place))


def test_who_keeps_the_tables_from_a_migration_is_waited_for_no_longer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*load_migrations("postgres"), (NEWEST + 1, "ALTER TABLE perdure.runs ADD more text;")]
    run(opened(place))
    name = "perdure.storage.postgres.migrate.load_migrations"
    monkeypatch.setattr(name, lambda dialect: more)
    with closing(psycopg.connect(url_of(place).partition("?")[0])) as other:
        other.execute(f"SELECT * FROM {url_of(place).rpartition('=')[2]}.runs".encode())
        with pytest.raises(StorageBusy, match="because a program holds a lock on its tables"):
            run(opened(place, busy_seconds=0.05))
    run(opened(place))
    assert look(place, "SELECT count(more) FROM runs") == [(0,)]


def test_a_process_that_freezes_while_it_migrates_is_thrown_out(
    postgres: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.postgres.migrate._IDLE_SECONDS", 0.05)
    frozen: list[str] = []

    def freeze(point: str) -> None:
        if point == f"commit.begin migrate {NEWEST}" and not frozen:
            frozen.append(point)
            # Until the server has thrown it out: nobody else can have the lock before.
            with closing(psycopg.connect(postgres)) as other:
                other.execute(LOCK)

    async def main() -> None:
        await opened(place, probe=freeze)
        await asyncio.gather(opened(place), opened(place))

    run(main())
    assert frozen
    assert look(place, "SELECT max(version) FROM migrations") == [(NEWEST,)]
