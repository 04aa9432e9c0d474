"""Runs that start by the clock, on stores that keep how far it has come."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context
from perdure.errors import StorageBusy, UnknownSchedule
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, run
from tests.storages import SQLITE_ONLY

START = 1_700_000_000
FIRST = "schedule.beat.20231114T221330Z"

pytestmark = pytest.mark.usefixtures("storage")


def beating(folder: Path, clock: ManualClock, **how: Any) -> App:
    """Return an App with a schedule, every 10 seconds where nothing else is said."""
    app = app_on(folder, clock=clock)

    @app.run(version=1)
    async def beat(context: Context) -> str:
        return context.run_id

    app.schedule(beat, **(how if "cron" in how else {"every_seconds": 10, **how}))
    return app


async def counted(app: App, seconds: int) -> None:
    """Return as soon as all ticks until then, from the start, are dealt with."""
    while [row.counted_to - START for row in await app.schedules()] != [seconds]:
        await asyncio.sleep(0)


async def started(app: App) -> list[str]:
    """Return the ids of all runs, in the order of their ticks."""
    return sorted(row.run_id for row in await app.list(limit=2000))


@asynccontextmanager
async def opened(*apps: App) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        yield


def test_each_tick_starts_one_run_with_the_input(tmp_path: Path) -> None:
    clock = ManualClock(START + 0.9)
    app = app_on(tmp_path, clock=clock)

    @app.run(version=1)
    async def add(context: Context, numbers: list[int]) -> int:
        raise AssertionError("the newest version is started")

    app.schedule(add, every_seconds=10, name="sum", input=[1, 2])

    @app.run(version=2, name="add")
    async def add_all(context: Context, numbers: list[int]) -> int:
        return sum(numbers)

    async def whole() -> None:
        async with app:
            await counted(app, 0)
            for tick in (10, 20):
                clock.advance(10)
                await counted(app, tick)
            assert await app.handle("schedule.sum.20231114T221330Z").result() == 3
            assert len(await started(app)) == 2
            (row,) = await app.schedules()
            told = (row.name, row.function, row.rule, row.paused, row.next_at)
            assert told == ("sum", "add", "every 10 s", False, START + 30)

    run(whole())


@pytest.mark.parametrize(("catch_up", "fires"), [("skip", 0), ("one", 1), ("all", 468)])
def test_a_sleep_of_78_minutes_fires_by_policy(tmp_path: Path, catch_up: str, fires: int) -> None:
    clock = ManualClock(START)

    async def whole() -> None:
        async with (app := beating(tmp_path, clock, catch_up=catch_up)):
            await counted(app, 0)
            clock.advance(78 * 60)
            await counted(app, 78 * 60)
            missed = await started(app)
            assert len(missed) == fires
            clock.advance(10)
            await counted(app, 78 * 60 + 10)
            assert len(await started(app)) == fires + 1

    run(whole())


def test_what_was_missed_while_no_worker_was_there_is_made_up_for(tmp_path: Path) -> None:
    clock = ManualClock(START)

    async def whole() -> None:
        async with (app := beating(tmp_path, clock)):
            await counted(app, 0)
        clock.advance(35)
        async with (app := beating(tmp_path, clock)):
            await counted(app, 30)
            assert await started(app) == ["schedule.beat.20231114T221350Z"]

    run(whole())


def test_any_number_of_workers_start_each_tick_once(tmp_path: Path) -> None:
    clock = ManualClock(START)
    apps = [beating(tmp_path, clock, catch_up="all") for _ in range(3)]

    async def whole() -> None:
        async with opened(*apps):
            await counted(apps[0], 0)
            for tick in range(10, 60, 10):
                clock.advance(10)
                await counted(apps[0], tick)
            clock.advance(1000)
            await counted(apps[0], 1050)
            assert len(await started(apps[0])) == 105
        counts = [app.observer.counts["perdure_run_started_total"] for app in apps]
        assert sum(counts) == 105

    run(whole())


@pytest.mark.parametrize(("more", "second"), [(0, []), (20, ["schedule.beat.20231114T221350Z"])])
def test_a_tick_that_was_started_and_not_counted_is_the_same_run(
    tmp_path: Path, more: int, second: list[str]
) -> None:
    clock = ManualClock(START)
    crashed = asyncio.Event()

    async def crash(*given: Any) -> bool:
        crashed.set()
        raise StorageBusy("the worker crashes here")

    async def whole() -> None:
        async with (app := beating(tmp_path, clock)):
            await counted(app, 0)
            app.store.count_ticks = crash
            clock.advance(10)
            await crashed.wait()
            assert await started(app) == [FIRST]
        clock.advance(more)
        async with (app := beating(tmp_path, clock)):
            await counted(app, 10 + more)
            assert await started(app) == [FIRST, *second]

    run(whole())


def test_another_rule_counts_from_the_last_tick(tmp_path: Path) -> None:
    clock = ManualClock(START)

    async def whole() -> None:
        async with (app := beating(tmp_path, clock)):
            await counted(app, 0)
            clock.advance(14)
            await counted(app, 10)
        async with (app := beating(tmp_path, clock, every_seconds=25)):
            clock.advance(20)
            await until_rule(app, "every 25 s")
            assert (await app.schedules())[0].next_at == START + 35
            clock.advance(1)
            await counted(app, 35)
            assert await started(app) == [FIRST, "schedule.beat.20231114T221355Z"]

    run(whole())


async def until_rule(app: App, rule: str) -> None:
    while [row.rule for row in await app.schedules()] != [rule]:
        await asyncio.sleep(0)


def test_a_worker_leaves_a_schedule_to_those_who_declare_it_later(tmp_path: Path) -> None:
    clock = ManualClock(START)
    old, new = (
        beating(tmp_path, clock, every_seconds=15),
        beating(tmp_path, clock, cron="* * * * *"),
    )

    async def whole() -> None:
        async with old:
            await counted(old, 0)
            async with new:
                await until_rule(new, "* * * * * (UTC)")
                clock.advance(40)
                await counted(new, 40)
                (row,) = await old.schedules()
                assert row.next_at is None
            for seconds in (60, 1):
                clock.advance(seconds)
                await looked(old)
            assert await started(old) == ["schedule.beat.20231114T221400Z"]

    run(whole())


async def looked(app: App) -> None:
    """Return when a worker has looked at its schedules again."""
    listed, seen = app.store.list_schedules, asyncio.Event()

    async def tell() -> Any:
        seen.set()
        return await listed()

    app.store.list_schedules = tell
    await seen.wait()
    app.store.list_schedules = listed


@pytest.mark.parametrize("catch_up", ["one", "all"])
def test_a_paused_schedule_starts_nothing_and_drops_its_ticks(
    tmp_path: Path, catch_up: str
) -> None:
    clock = ManualClock(START)

    async def whole() -> None:
        async with (app := beating(tmp_path, clock, catch_up=catch_up)):
            await counted(app, 0)
            await app.pause_schedule("beat")
            clock.advance(35)
            await looked(app)
        async with (app := beating(tmp_path, clock, catch_up=catch_up)):
            await looked(app)
            assert [(row.paused, row.next_at) for row in await app.schedules()] == [(True, None)]
            await app.resume_schedule("beat")
            await counted(app, 35)
            await app.resume_schedule("beat")
            clock.advance(10)
            await counted(app, 45)
            assert await started(app) == ["schedule.beat.20231114T221405Z"]
            for change in (app.pause_schedule, app.resume_schedule):
                with pytest.raises(UnknownSchedule, match="no schedule 'bet'"):
                    await change("bet")

    run(whole())


@SQLITE_ONLY
def test_who_waits_for_one_run_starts_no_others(tmp_path: Path) -> None:
    app = beating(tmp_path, ManualClock(START))
    assert app.run_sync("beat", run_id="mine") == "mine"
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        assert connection.execute("SELECT count(*) FROM schedules").fetchall() == [(0,)]
    connection.close()
