"""Runs that are started from inside of a run, and what they come to for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState, operation
from perdure.engine.store import NewRun
from perdure.errors import (
    InvalidInvocation,
    InvalidPayload,
    OperationFailed,
    RunCancelled,
    RunFailed,
    StorageBusy,
    UnknownFunction,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, finish, keys, run, sql
from tests.waiting import put_away, stands, waiting_app

pytestmark = pytest.mark.usefixtures("storage")

CHILD = f"{RUN}.child.1"


def with_children(folder: Path, **options: Any) -> App:
    """Return an App with runs that start others and say what these came to."""
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def child(context: Context, value: Any = "nothing") -> tuple[Any]:
        if value == "bad":
            raise ValueError("unlucky")
        if value == "late":
            await context.wait_for("go")
        return (value,)

    @app.run(version=1)
    async def parent(context: Context, values: list[Any]) -> list[Any]:
        children = [await context.start_child(child, value) for value in values]
        told: list[Any] = []
        for each in children:
            try:
                told.append(await each.result())
            except RunFailed as failed:
                told.append(f"{failed.code} {failed.type_name}: {failed.message}")
            except RunCancelled as cancelled:
                told.append(f"cancelled {cancelled.run_id}")
        return told

    return app


def test_children_end_well_and_badly_and_a_replay_says_so_again(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Any], list[Any], list[str]]:
        app = with_children(tmp_path)
        async with app:
            handle = await app.start("parent", [1, "bad", "late", b"x", "late"], run_id=RUN)
            await put_away(app, f"{RUN}.child.3")
            await put_away(app, f"{RUN}.child.5")
            await put_away(app)
            await app.handle(f"{RUN}.child.5").cancel()
            await app.send(f"{RUN}.child.3", "go")
            result = await handle.result()
            rows = await app.store.list_children(RUN, limit=9)
            assert [row.parent for row in rows] == [RUN] * 5
            rehearsed = await app.rehearse(RUN)
            assert rehearsed is not None
        return result, [row.run_id for row in rows], [row.state.value for row in rows]

    result, run_ids, states = run(scenario())
    assert result == [
        (1,),
        "ValueError ValueError: unlucky",
        ("late",),
        (b"x",),
        f"cancelled {RUN}.child.5",
    ]
    assert run_ids == [f"{RUN}.child.{n}" for n in range(1, 6)]
    assert states == ["completed", "failed", "completed", "completed", "cancelled"]
    recorded = run(keys(app_on(tmp_path)))
    assert recorded[:5] == [("child", n) for n in range(1, 6)]
    assert sorted(recorded[5:]) == [("child.end", n) for n in range(1, 6)]


def test_a_child_goes_on_elsewhere_and_ends_before_anybody_waits(tmp_path: Path) -> None:
    started: list[str] = []

    def made() -> App:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context) -> str:
            started.append(context.run_id)
            return "done"

        @app.run(version=1)
        async def parent(context: Context) -> str:
            one = await context.branch("one").start_child("child", run_id="chosen")
            await context.wait_for("go")
            return await one.result()

        return app

    async def scenario() -> Any:
        async with made() as app:
            await app.start("parent", run_id=RUN)
            await stands(app, RunState.SUSPENDED)
        async with made() as app:
            assert await app.handle("chosen").result() == "done"
        async with made().connect() as app:
            await app.send(RUN, "go")
        return await finish(made())

    assert run(scenario()) == "done"
    assert started == ["chosen"]


def test_a_child_is_started_once_across_a_crash_between_it_and_its_record(
    tmp_path: Path,
) -> None:
    async def scenario() -> Any:
        app = with_children(tmp_path)
        async with app.connect():
            await app.start("parent", ["x"], run_id=RUN)
            # As a worker leaves it that dies in between.
            left = NewRun(CHILD, "child", 1, b'"x"', app.store.clock.now(), parent=RUN)
            await app.store.start_run(left, None)
        async with app:
            return await app.handle(RUN).result()

    assert run(scenario()) == [("x",)]
    assert sql(tmp_path, "SELECT count(*) FROM runs") == [(2,)]


def test_an_id_that_is_another_runs_is_refused_now_and_on_replay(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context, value: int = 1) -> int:
            return value

        @app.run(version=1)
        async def parent(context: Context) -> list[str]:
            said: list[str] = []
            for run_id, value in (("taken", 1), ("mine", 1), ("mine", 2), ("a b", 1)):
                # Under one id in one run, too, only the same one is started again.
                try:
                    await context.start_child(child, value, run_id=run_id)
                except (OperationFailed, InvalidInvocation) as error:
                    said.append(getattr(error, "code", type(error).__name__))
            with pytest.raises(UnknownFunction):
                await context.start_child("nobody")
            for seconds in (-1, float("nan"), float("inf")):
                with pytest.raises(InvalidPayload):
                    await context.start_child(child, deadline_seconds=seconds)
            await context.wait_for("go")
            return said

        async with app:
            await app.start(child, run_id="taken")
            handle = await app.start(parent, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "go")
            return await handle.result()

    assert run(scenario()) == ["RunConflict", "RunConflict", "InvalidInvocation"]


def test_a_store_that_is_busy_does_not_keep_a_child_from_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> Any:
        app = with_children(tmp_path)
        async with app:
            start = app.store.start_run
            refused: list[bool] = []

            async def busy(run: Any, holder: Any) -> Any:
                if run.parent is not None and not refused:
                    refused.append(True)
                    raise StorageBusy("busy")
                return await start(run, holder)

            monkeypatch.setattr(app.store, "start_run", busy)
            return await (await app.start("parent", ["x"], run_id=RUN)).result(), refused

    assert run(scenario()) == ([("x",)], [True])


def test_a_parent_that_failed_and_goes_on_hears_of_a_child_that_ended_meanwhile(
    tmp_path: Path,
) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        broken = [True]

        @app.run(version=1)
        async def child(context: Context) -> int:
            return await context.wait_for("news")

        @app.run(version=1)
        async def parent(context: Context) -> int:
            one = await context.start_child(child)
            if broken:
                raise ValueError("broken")
            return await one.result()

        async with app:
            handle = await app.start(parent, run_id=RUN)
            await stands(app, RunState.FAILED)
            await app.send(CHILD, "news", 7)
            assert await app.handle(CHILD).result() == 7
            broken.clear()
            await app.resume(RUN)
            return await handle.result()

    assert run(scenario()) == 7


def test_a_child_that_failed_and_was_resumed_is_waited_for_again(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        broken = [True]

        @app.run(version=1)
        async def child(context: Context) -> int:
            if broken:
                raise ValueError("broken")
            return await context.wait_for("news")

        @app.run(version=1)
        async def parent(context: Context) -> int:
            one = await context.start_child(child)
            await context.wait_for("go")
            return await one.result()

        async with app:
            handle = await app.start(parent, run_id=RUN)
            await stands(app, RunState.FAILED, run_id=CHILD)
            broken.clear()
            await app.resume(CHILD)
            await put_away(app, CHILD)
            await app.send(RUN, "go")
            await put_away(app)
            await app.send(CHILD, "news", 7)
            return await handle.result()

    assert run(scenario()) == 7


def test_a_child_that_was_erased_is_said_to_be_gone(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context) -> int:
            return 7

        @app.run(version=1)
        async def parent(context: Context) -> str:
            one = await context.start_child(child)
            await context.wait_for("go")
            with pytest.raises(RunFailed) as failed:
                await one.result()
            return failed.value.code

        async with app:
            handle = await app.start(parent, run_id=RUN)
            await stands(app, RunState.COMPLETED, run_id=CHILD)
            await put_away(app)
            await app.erase(CHILD, by="ada", why="asked")
            await app.send(RUN, "go")
            return await handle.result()

    assert run(scenario()) == "UnknownRun"


def test_children_of_children_have_ids_that_stay_identifiers(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def nest(context: Context, depth: int) -> int:
            if depth == 0:
                return len(context.run_id)
            return await (await context.start_child(nest, depth - 1)).result()

        async with app:
            return await (await app.start(nest, 20, run_id="r" * 100)).result()

    assert run(scenario()) <= 128


def test_a_child_that_needs_attention_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path, clock=ManualClock())

        @operation
        async def unknown() -> None:
            raise ConnectionError("nobody knows")

        @app.run(version=1)
        async def child(context: Context) -> None:
            await context.call(unknown)

        @app.run(version=1)
        async def parent(context: Context) -> str:
            one = await context.start_child(child)
            try:
                await one.result()
            except RunCancelled:
                return "cancelled"
            return "done"

        async with app:
            handle = await app.start(parent, run_id=RUN)
            await stands(app, RunState.NEEDS_ATTENTION, run_id=CHILD)
            await put_away(app)
            state = await handle.status()
            await app.cancel(CHILD)
            return state, await asyncio.wait_for(handle.result(), 60)

    assert run(scenario()) == (RunState.SUSPENDED, "cancelled")


def test_a_program_that_executes_only_its_own_run_executes_those_below_it(tmp_path: Path) -> None:
    app = waiting_app(tmp_path)

    @app.run(version=1)
    async def nest(context: Context, depth: int) -> int:
        if depth == 0:
            return 1
        one, two = [await context.start_child(nest, depth - 1) for _ in range(2)]
        return await one.result() + await two.result()

    async def others() -> None:
        async with app.connect():
            await app.start(nest, 0, run_id="others")

    async def left() -> RunState:
        async with app.connect():
            return await app.handle("others").status()

    run(others())
    assert app.run_sync(nest, 2) == 4
    assert run(left()) == RunState.PENDING
