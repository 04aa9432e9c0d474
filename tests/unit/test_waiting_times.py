"""Runs that wait for a time: how long, until when, and between tries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RetryPolicy, RunState, operation
from perdure.errors import InvalidPayload
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, attempts, keys, operations, run
from tests.waiting import later, put_away, waiting_app

SLOW = RetryPolicy(attempts=3, initial_seconds=600, maximum_seconds=1200)

pytestmark = pytest.mark.usefixtures("storage")


def test_a_short_sleep_is_waited_in_memory_and_a_long_one_in_rows(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock, linger_seconds=5.0)

        @app.run(version=1)
        async def work(context: Context, seconds: float) -> None:
            await context.sleep(seconds)

        async with app:
            for run_id, seconds in (("short", 4.0), ("long", 40.0)):
                handle = await app.start(work, seconds, run_id=run_id)
                while not (await handle.status()).settled:
                    await later(app, clock, 2.0)
            return [len(await app.store.list_attempts(run_id)) for run_id in ("short", "long")]

    assert run(scenario()) == [1, 2]


def test_a_run_sleeps_until_a_moment(tmp_path: Path) -> None:
    clock = ManualClock()
    moment = datetime.fromtimestamp(clock.now(), UTC) + timedelta(days=3)

    async def scenario() -> list[Any]:
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> float:
            await context.sleep_until(moment - timedelta(days=4))
            await context.sleep_until(moment.astimezone(None))
            with pytest.raises(InvalidPayload, match="time zone"):
                await context.sleep_until(moment.replace(tzinfo=None))
            return clock.now()

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            row = await app.engine.find(RUN)
            await later(app, clock, timedelta(days=3).total_seconds() - 1)
            before = await handle.status()
            clock.advance(1)
            return [row.wake_at, before, await handle.result()]

    at = moment.timestamp()
    assert run(scenario()) == [at, RunState.SLEEPING, at]
    assert run(keys(app_on(tmp_path))) == [("sleep_until", 1), ("sleep_until", 2)]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", 1e15])
def test_what_is_no_time_to_wait_is_refused(tmp_path: Path, seconds: Any) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> str:
            with pytest.raises(InvalidPayload, match="finite number of seconds"):
                await context.sleep(seconds)
            with pytest.raises(InvalidPayload, match="finite number of seconds"):
                await context.wait_for("news", timeout_seconds=seconds)
            with pytest.raises(InvalidPayload, match="finite number of seconds"):
                await context.approval("pay", {}, timeout_seconds=seconds)
            return "refused"

        async with app:
            return await (await app.start(work, run_id=RUN)).result()

    assert run(scenario()) == "refused"
    assert run(operations(app_on(tmp_path))) == []


def test_a_local_timeout_counts_anew_in_each_execution(tmp_path: Path) -> None:
    """Which is why waits have a timeout of their own."""

    async def scenario() -> list[Any]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                async with asyncio.timeout(3600):
                    return await context.wait_for("news")
            except TimeoutError:
                return "timed out"

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await later(app, clock, 1e6)
            row = await app.engine.find(RUN)
            await app.send(RUN, "news", "at last")
            return [row.state, row.wake_at, await handle.result()]

    assert run(scenario()) == [RunState.SUSPENDED, None, "at last"]


def test_a_long_delay_between_tries_is_spent_in_rows(tmp_path: Path) -> None:
    tries: list[int] = []

    def made(clock: ManualClock) -> App:
        app = waiting_app(tmp_path, clock=clock)

        @operation(read_only=True, retry=SLOW)
        async def flaky() -> str:
            tries.append(len(tries) + 1)
            if len(tries) < 3:
                raise ConnectionError(f"try {len(tries)}")
            return "at last"

        @app.run(version=1)
        async def work(context: Context) -> str:
            return await context.call(flaky)

        return app

    async def scenario() -> list[Any]:
        clock = ManualClock()
        states: list[RunState] = []
        async with made(clock) as app:
            handle = await app.start("work", run_id=RUN)
            states.append(await put_away(app))
            row = await app.engine.find(RUN)
            assert row.wake_at is not None
            clock.advance(row.wake_at - clock.now())
            while len(tries) < 2:
                await asyncio.sleep(0)
            states.append(await put_away(app))
        clock.advance(3600)
        async with made(clock) as app:
            handle = app.handle(RUN)
            result = await handle.result()
            (row,) = [
                each for each in await app.store.list_operations(RUN) if each.kind == "tool_call"
            ]
            return [*states, result, row.attempt]

    assert run(scenario()) == ["sleeping", "sleeping", "at last", 3]
    assert tries == [1, 2, 3]
    assert [each.ending for each in run(attempts(app_on(tmp_path)))] == [
        "sleeping",
        "sleeping",
        "completed",
    ]
