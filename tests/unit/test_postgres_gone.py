"""A schema that is dropped, changed or made anew under processes that use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, StorageError
from perdure.errors import StorageMissing, UnknownRun
from perdure.testing.storage.scene import new_run
from tests.harness import RUN, app_on, run, until
from tests.storages import kept_on_server, look, schema_of

DROPPED = "was dropped, renamed or changed. Bring it back"


@pytest.fixture
def place(postgres: str, tmp_path: Path) -> Iterator[Path]:
    with kept_on_server(tmp_path, postgres):
        yield tmp_path


def gated_app(place: Path, gate: asyncio.Event, begun: asyncio.Event, **options: Any) -> App:
    app = app_on(place, **options)

    @app.run(version=1)
    async def work(context: Context) -> None:
        begun.set()
        await gate.wait()

    return app


async def result(app: App, number: int) -> Any:
    return await (await app.start("double", number)).result()


@pytest.mark.parametrize(
    "change",
    [
        "DROP SCHEMA {} CASCADE",
        "ALTER SCHEMA {0} RENAME TO {0}_other",
        "DROP TABLE {}.runs CASCADE",
        "ALTER TABLE {}.runs DROP COLUMN state CASCADE",
    ],
)
def test_nobody_waits_for_a_schema_that_is_gone(place: Path, change: str) -> None:
    async def main() -> None:
        gate, begun = asyncio.Event(), asyncio.Event()
        other = gated_app(place, gate, begun)
        async with gated_app(place, gate, begun) as working, other.connect():
            handle = await working.start("work", run_id=RUN)
            await begun.wait()
            waiting = [asyncio.ensure_future(it.handle(RUN).result()) for it in (working, other)]
            await until(lambda: bool(working.engine._ends.awaited and other.engine._ends.awaited))
            look(place, change.format(schema_of(place)))
            gate.set()
            for task in waiting:
                with pytest.raises(StorageMissing, match=DROPPED):
                    await task
            for call in (other.list(), other.start("work"), handle.status(), handle.cancel()):
                with pytest.raises(StorageMissing, match=DROPPED):
                    await call

    try:
        run(main())
    finally:
        look(place, f"DROP SCHEMA IF EXISTS {schema_of(place)}_other CASCADE")


def test_a_worker_says_once_that_its_schema_is_gone_and_goes_on_when_it_is_back(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_of(place)

    async def main() -> None:
        app = app_on(place, lease_seconds=2.0, sweep_seconds=0.02)
        looks = 0

        def look_again() -> bool:
            nonlocal looks
            looks += 1
            return True

        @app.run(version=1)
        async def double(context: Context, number: int) -> int:
            return 2 * number

        async with app:
            assert await result(app, 1) == 2
            look(place, f"ALTER SCHEMA {schema} RENAME TO {schema}_other")
            monkeypatch.setattr(app.store, "changed", look_again)
            await until(lambda: looks > 8)
            worker = app.engine._worker
            assert worker is not None
            await until(lambda: worker._lease is None)
            with pytest.raises(StorageError):
                await result(app, 2)
            look(place, f"ALTER SCHEMA {schema}_other RENAME TO {schema}")
            assert await result(app, 3) == 6

    with caplog.at_level(logging.WARNING):
        run(main())
    said = [record.message for record in caplog.records if DROPPED in record.message]
    waits = [one for one in said if "waits for its store" in one]
    assert len(waits) == len(set(waits)) > 0
    assert len([one for one in said if "could not renew" in one]) == 1


def test_who_waits_for_a_run_of_a_schema_that_was_made_anew_is_told(place: Path) -> None:
    async def main() -> None:
        async with app_on(place).connect() as waiting:
            await waiting.store.start_run(new_run(RUN), None)
            task = asyncio.ensure_future(waiting.handle(RUN).result())
            await until(lambda: bool(waiting.engine._ends.awaited))
            look(place, "DELETE FROM runs")
            with pytest.raises(UnknownRun):
                await task

    run(main())
