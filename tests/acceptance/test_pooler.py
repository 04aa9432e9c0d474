"""Runs behind a pooler that gives each transaction another connection of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, WorkerOptions, effect
from perdure.clock import SystemClock
from perdure.engine.store import RunStore
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.hints import Hints
from perdure.testing.storage import Check, checks
from perdure.urls import location_of
from tests.acceptance.pooler import pooling
from tests.acceptance.samples import FULL
from tests.harness import run
from tests.storages import kept_on_server, url_of

_APPS = 4
_RUNS = 40
_CHECKS = checks()[:: 3 if FULL else 15]


@pytest.fixture(scope="module")
def pooled(postgres: str) -> Iterator[str]:
    with pooling(postgres) as url:
        yield url


@pytest.fixture
def folder(pooled: str, tmp_path: Path) -> Iterator[Path]:
    """Return a folder whose store is behind a pooler."""
    with kept_on_server(tmp_path, pooled):
        yield tmp_path


def _app(folder: Path) -> App:
    app = App(url_of(folder), worker=WorkerOptions(concurrency=30))

    @effect(support="idempotent")
    async def double(number: int) -> int:
        return 2 * number

    @app.run(version=1)
    async def doubling(context: Context, number: int) -> list[int]:
        return [await context.call(double, number + step) for step in range(5)]

    return app


def test_many_at_once_are_not_taken_for_one_another(folder: Path) -> None:
    """Each has prepared statements of its own, which the others would find under their names."""

    async def main() -> None:
        apps = [_app(folder) for _ in range(_APPS)]
        async with asyncio.TaskGroup() as tasks:
            for first, app in enumerate(apps):
                tasks.create_task(use(app, first))

    async def use(app: App, first: int) -> None:
        async with app:
            numbers = range(first * _RUNS, (first + 1) * _RUNS)
            handles = [await app.start("doubling", n, run_id=f"run-{n}") for n in numbers]
            results = await asyncio.gather(*(handle.result() for handle in handles))
            assert results == [[2 * (number + step) for step in range(5)] for number in numbers]
            hints = app.store.hints  # type: ignore[attr-defined]
            # It does not even try: a connection of the pooler's that listens could end the pooler.
            assert (hints._tested.is_set(), hints.works) == (True, False)
            for number in numbers:
                assert (await app.find(f"run-{number}")).state == "completed"

    run(main())


@pytest.mark.parametrize("check", _CHECKS, ids=lambda check: check.name)
def test_a_pooler_changes_no_promise(folder: Path, check: Check) -> None:
    place = location_of(url_of(folder))

    async def open_store(**given: Any) -> RunStore:
        return await place.open(SystemClock(), Observer(), 20.0, no_probe, create=True, **given)

    run(check(open_store))


def test_no_statement_is_prepared_behind_a_pooler(
    folder: Path, postgres: str, tmp_path: Path
) -> None:
    direct = tmp_path / "direct"
    direct.mkdir()

    async def prepares(place: Path) -> bool:
        async with _app(place).connect() as app:
            return database(app).direct

    with kept_on_server(direct, postgres):
        assert run(prepares(direct))
    assert not run(prepares(folder))


def test_a_statement_that_is_lost_all_the_same_is_sent_unprepared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that passes on the numbers of the server's processes."""

    async def direct(database: Any, connection: Any) -> bool:
        return True

    monkeypatch.setattr(Database, "_is_direct", direct)
    monkeypatch.setattr(Hints, "open", lambda hints: None)  # they are not for poolers

    async def main() -> None:
        async with _app(folder).connect() as one, _app(folder).connect() as other:
            for number in range(20):
                await asyncio.gather(
                    *(app.find(f"none-{n}") for app in (one, other) for n in range(4)),
                    return_exceptions=True,
                )
                await (one, other)[number % 2].start("doubling", number, run_id=f"run-{number}")
            assert not all(database(app).direct for app in (one, other))
            assert len(await one.list()) == 20

    run(main())


def database(app: App) -> Any:
    return app.store._db  # type: ignore[attr-defined]
