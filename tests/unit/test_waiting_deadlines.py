"""Runs that have to have ended at a time, whether they act, wait or nobody executes them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState, operation
from perdure.errors import InvalidOptions, RunFailed
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, run, until
from tests.waiting import later, put_away, stands, ticks, until_idle, waiting_app

pytestmark = pytest.mark.usefixtures("storage")

CHILD = f"{RUN}.child.1"


async def failure(app: App, run_id: str = RUN) -> str:
    """Return the code with which a run fails."""
    with pytest.raises(RunFailed) as failed:
        await app.handle(run_id).result()
    return failed.value.code


@pytest.mark.parametrize(("down_seconds", "calls"), [(601, 1), (599, 2)])
def test_a_run_that_is_taken_up_again_has_what_is_left(
    tmp_path: Path, down_seconds: float, calls: int
) -> None:
    """T38: after its deadline nothing is dispatched, and before it nothing starts anew."""
    called: list[str] = []

    async def scenario() -> tuple[str, float | None]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)
        left: list[float] = []

        @operation(read_only=True)
        async def act() -> None:
            called.append("act")
            await asyncio.Event().wait()

        @app.run(version=1)
        async def work(context: Context) -> None:
            assert context.deadline is not None
            left.append(context.deadline.timestamp() - clock.now())
            await context.call(act)

        async with app:
            await app.start(work, run_id=RUN, deadline_seconds=600)
            await until(lambda: called == ["act"])
        clock.advance(down_seconds)
        async with app:
            if down_seconds < 600:
                await until(lambda: len(called) == 2)
                await later(app, clock, 0.9)
                assert await app.handle(RUN).status() == RunState.RUNNING
                await later(app, clock, 0.2)
            return await failure(app), left[-1] if len(left) > 1 else None

    code, left = run(scenario())
    assert code == "DeadlineExceeded"
    assert left is None or left == pytest.approx(1.0)
    assert called == ["act"] * calls


@pytest.mark.parametrize("how", ["sleep", "wait_for", "approval", "child"])
def test_a_run_that_was_put_away_ends_at_its_deadline(tmp_path: Path, how: str) -> None:
    async def scenario() -> tuple[float, list[str], int]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def child(context: Context) -> None:
            await context.wait_for("never")

        @app.run(version=1)
        async def work(context: Context) -> None:
            match how:
                case "sleep":
                    await context.sleep(3600)
                case "wait_for":
                    await context.wait_for("never")
                case "approval":
                    await context.approval("pay", {})
                case _:
                    await (await context.start_child(child)).result()

        async with app:
            began = clock.now()
            await app.start(work, run_id=RUN, deadline_seconds=60)
            await put_away(app)
            row = await app.engine.find(RUN)
            assert row.wake_at == row.deadline_at
            assert row.deadline_at is not None
            if how == "child":
                await put_away(app, CHILD)
            clock.advance(60)
            codes = [await failure(app)]
            if how == "child":
                codes.append(await failure(app, CHILD))
            return row.deadline_at - began, codes, len(await app.approvals())

    seconds, codes, open_items = run(scenario())
    assert seconds == pytest.approx(60, abs=1e-3)
    assert codes == ["DeadlineExceeded"] * (2 if how == "child" else 1)
    assert open_items == 0


def test_a_wait_that_ends_before_the_deadline_ends_as_it_would(tmp_path: Path) -> None:
    async def scenario() -> Any:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> str:
            await context.sleep(30)
            try:
                await context.wait_for("never", timeout_seconds=20)
            except TimeoutError:
                return "in time"
            return "never"

        async with app:
            handle = await app.start(work, run_id=RUN, deadline_seconds=60)
            for seconds in (30, 20):
                await put_away(app)
                clock.advance(seconds)
                await stands(app, RunState.SUSPENDED, RunState.COMPLETED)
            return await handle.result()

    assert run(scenario()) == "in time"


@pytest.mark.parametrize(("asked", "granted"), [(None, 40), (10, 10), (600, 40)])
def test_a_child_gets_no_more_than_what_is_left(
    tmp_path: Path, asked: float | None, granted: float
) -> None:
    async def scenario() -> float:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def child(context: Context) -> None:
            await context.wait_for("never")

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.sleep(20)
            await context.start_child(child, deadline_seconds=asked)

        async with app:
            handle = await app.start(work, run_id=RUN, deadline_seconds=60)
            await put_away(app)
            clock.advance(20)
            await handle.result()
            row = await app.engine.find(CHILD)
            assert row.deadline_at is not None
            return row.deadline_at - clock.now()

    assert run(scenario()) == pytest.approx(granted, abs=1e-3)


def test_a_run_that_was_too_late_and_is_resumed_has_no_deadline_any_more(tmp_path: Path) -> None:
    async def scenario() -> list[Any]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> tuple[bool, str]:
            return context.deadline is None, await context.wait_for("news")

        async with app:
            handle = await app.start(work, run_id=RUN, deadline_seconds=60)
            await put_away(app)
            clock.advance(61)
            codes = [await failure(app)]
            await app.resume(RUN)
            await later(app, clock, 600)
            await put_away(app)
            await app.send(RUN, "news", "late")
            return [*codes, await handle.result()]

    assert run(scenario()) == ["DeadlineExceeded", (True, "late")]


def test_a_run_that_is_too_late_cleans_up_and_is_not_cut_short_again(tmp_path: Path) -> None:
    called: list[str] = []

    async def scenario() -> str:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock, linger_seconds=3600.0)

        async def clean() -> None:
            called.append("begun")
            await ticks(app, 5)
            called.append("ended")

        @app.run(version=1)
        async def work(context: Context) -> None:
            try:
                await context.wait_for("never")
            finally:
                await context.call(clean)

        async with app:
            await app.start(work, run_id=RUN, deadline_seconds=60)
            await until_idle(app)
            clock.advance(61)
            return await failure(app)

    assert run(scenario()) == "DeadlineExceeded"
    assert called == ["begun", "ended"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_run_has_some_time_to_end_in(tmp_path: Path, seconds: float) -> None:
    async def scenario() -> int:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> None:
            assert context.deadline is None or context.deadline > datetime.now(UTC)

        async with app:
            with pytest.raises(InvalidOptions):
                await app.start(work, deadline_seconds=seconds)
            await (await app.start(work)).result()
            return len(await app.list())

    assert run(scenario()) == 1
