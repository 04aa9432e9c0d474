"""Cancelling runs that wait, that run, and those that were started from inside of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from perdure import App, Context, RunState, operation
from perdure.errors import RunCancelled
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, run, sql, until
from tests.waiting import later, put_away, stands, ticks, waiting_app

pytestmark = pytest.mark.usefixtures("storage")

CHILD, GRANDCHILD = f"{RUN}.child.1", f"{RUN}.child.1.child.1"


def family(folder: Path, **options: object) -> App:
    """Return an App whose runs start one another, three deep, and wait for these."""
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def nest(context: Context, depth: int) -> int:
        if depth == 0:
            return await context.wait_for("news")
        child = await context.start_child(nest, depth - 1)
        return await child.result()

    return app


def test_a_run_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[RunState], int]:
        app = family(tmp_path)
        async with app:
            sleeping = await app.start("nest", 0, run_id=RUN)
            await put_away(app)
            states = [await sleeping.cancel(), await sleeping.cancel()]
            with pytest.raises(RunCancelled):
                await sleeping.result()
            return states, len(await app.store.list_attempts(RUN))

    assert run(scenario()) == ([RunState.CANCELLED] * 2, 1)
    assert sql(tmp_path, "SELECT wake_at FROM runs") == [(None,)]


def test_a_run_that_acts_is_cancelling_until_what_it_does_is_settled(tmp_path: Path) -> None:
    """T36: two tools in flight, of which one takes its time to notice."""

    async def scenario() -> tuple[list[RunState], list[tuple[str, str]]]:
        app = waiting_app(tmp_path)
        acting: list[str] = []
        go = asyncio.Event()

        async def stubborn() -> str:
            acting.append("stubborn")
            while not go.is_set():
                with suppress(asyncio.CancelledError):
                    await go.wait()
            return "landed"

        async def quick() -> str:
            acting.append("quick")
            await asyncio.Event().wait()
            return "never"

        @app.run(version=1)
        async def work(context: Context) -> None:
            await asyncio.gather(context.call(stubborn), context.call(quick))

        async with app:
            handle = await app.start(work, run_id=RUN)
            await until(lambda: len(acting) == 2)
            states = [await handle.cancel()]
            await ticks(app)
            states.append(await handle.status())
            go.set()
            with pytest.raises(RunCancelled):
                await handle.result()
            states.append(await handle.status())
        receipts = sql(tmp_path, "SELECT target, state FROM receipts ORDER BY target")
        return states, receipts

    states, receipts = run(scenario())
    assert states == [RunState.CANCELLING, RunState.CANCELLING, RunState.CANCELLED]
    assert [state for _, state in receipts] == ["ambiguous", "completed"]


def test_a_cancelling_run_whose_worker_closes_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> list[RunState]:
        app = waiting_app(tmp_path)
        acting = asyncio.Event()

        @operation(read_only=True)
        async def act() -> None:
            acting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                raise

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.call(act)

        async with app:
            handle = await app.start(work, run_id=RUN)
            await acting.wait()
            states = [await handle.cancel()]
        async with app.connect():
            return [*states, await app.handle(RUN).status()]

    assert run(scenario()) == [RunState.CANCELLING, RunState.CANCELLED]


def test_a_cancellation_reaches_children_and_theirs(tmp_path: Path) -> None:
    async def scenario() -> list[RunState]:
        app = family(tmp_path)
        async with app:
            handle = await app.start("nest", 2, run_id=RUN)
            for run_id in (GRANDCHILD, CHILD, RUN):
                while await app.store.read_run(run_id) is None:
                    await asyncio.sleep(0)
                await put_away(app, run_id)
            other = await app.start("nest", 0, run_id="other")
            await put_away(app, "other")
            await handle.cancel()
            return [
                (await app.engine.find(each)).state
                for each in (RUN, CHILD, GRANDCHILD, other.run_id)
            ]

    assert run(scenario()) == [RunState.CANCELLED] * 3 + [RunState.SUSPENDED]


def test_a_cancellation_reaches_a_child_that_runs(tmp_path: Path) -> None:
    async def scenario() -> list[RunState]:
        app, starter = waiting_app(tmp_path), app_on(tmp_path)
        acting, ended = asyncio.Event(), asyncio.Event()

        @app.run(version=1)
        async def child(context: Context) -> None:
            acting.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        @app.run(version=1)
        async def work(context: Context) -> None:
            await (await context.start_child(child)).result()

        async with app, starter.connect():
            await app.start(work, run_id=RUN)
            await acting.wait()
            await put_away(app)
            states = [(await starter.cancel(RUN)).state]
            await ended.wait()
            return [*states, await stands(app, RunState.CANCELLED, run_id=CHILD)]

    assert run(scenario()) == [RunState.CANCELLED, RunState.CANCELLED]


def test_a_child_that_is_started_while_its_parent_is_cancelled_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    async def scenario() -> RunState:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context) -> None:
            called.append("child")

        @app.run(version=1)
        async def work(context: Context) -> None:
            await (await context.start_child(child)).result()

        async with app:
            start = app.store.start_run

            async def late(run: object, holder: object) -> object:
                if getattr(run, "parent", None):
                    await app.store.request_cancel(RUN)
                return await start(run, holder)  # pyright: ignore[reportArgumentType]

            monkeypatch.setattr(app.store, "start_run", late)
            await app.start(work, run_id=RUN)
            await stands(app, RunState.CANCELLED)
            row = await app.store.read_run(CHILD)
            return (
                RunState.CANCELLED
                if row is None
                else await stands(app, RunState.CANCELLED, RunState.COMPLETED, run_id=CHILD)
            )

    assert run(scenario()) == RunState.CANCELLED
    assert called == []


def test_an_ended_run_leaves_its_children_alone(tmp_path: Path) -> None:
    async def scenario() -> list[RunState]:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context) -> None:
            await context.wait_for("news")

        @app.run(version=1)
        async def work(context: Context) -> str:
            return (await context.start_child(child, run_id="left")).run_id

        async with app:
            handle = await app.start(work, run_id=RUN)
            assert await handle.result() == "left"
            await put_away(app, "left")
            return [await handle.cancel(), await app.handle("left").status()]

    assert run(scenario()) == [RunState.COMPLETED, RunState.SUSPENDED]


def test_a_cancellation_that_meets_a_run_on_its_way_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> list[RunState]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.sleep(60)

        async with app:
            park = app.store.park_run
            states: list[RunState] = []

            async def late(*args: object, **options: object) -> RunState:
                states.append(await app.handle(RUN).cancel())
                return await park(*args, **options)  # pyright: ignore[reportArgumentType]

            monkeypatch.setattr(app.store, "park_run", late)
            handle = await app.start(work, run_id=RUN)
            with pytest.raises(RunCancelled):
                await handle.result()
            await later(app, clock, 61)
            return [*states, await handle.status()]

    assert run(scenario()) == [RunState.CANCELLING, RunState.CANCELLED]
