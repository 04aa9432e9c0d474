"""What a run that only waits takes: rows, and neither a place nor a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState, operation
from perdure.approvals import Deny
from perdure.errors import StorageError
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, finish, run, until
from tests.waiting import (
    later,
    put_away,
    stands,
    ticks,
    until_given_up,
    until_idle,
    waiting_app,
)

pytestmark = pytest.mark.usefixtures("storage")


def test_more_runs_wait_than_a_worker_has_places(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[RunState], list[int]]:
        app = waiting_app(tmp_path, concurrency=2, linger_seconds=3600.0)

        @app.run(version=1)
        async def work(context: Context, number: int) -> int:
            return number + await context.wait_for("more")

        async with app:
            handles = [await app.start(work, number) for number in range(5)]
            # A place that another run needs is given up at once.
            for handle in handles[:3]:
                await put_away(app, handle.run_id)
            waiting = [await handle.status() for handle in handles]
            for handle in reversed(handles):
                await app.send(handle.run_id, "more", 10)
            return waiting, [await handle.result() for handle in handles]

    waiting, results = run(scenario())
    assert waiting.count(RunState.SUSPENDED) >= 3
    assert results == [10, 11, 12, 13, 14]


def test_a_run_that_was_put_away_goes_on_in_another_app(tmp_path: Path) -> None:
    called: list[str] = []

    def made(clock: ManualClock) -> App:
        app = waiting_app(tmp_path, clock=clock)

        async def note(what: str) -> str:
            called.append(what)
            return what

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            first = await context.call(note, "first")
            await context.sleep(3600)
            said = await context.wait_for("news")
            answer = await context.approval("pay", {"cents": 5})
            return [first, said, type(answer).__name__, await context.call(note, "last")]

        return app

    async def scenario() -> list[Any]:
        clock = ManualClock()
        async with made(clock) as app:
            await app.start("work", run_id=RUN)
            states = [await put_away(app)]
        clock.advance(3600)
        async with made(clock) as app:
            states.append(await stands(app, RunState.SUSPENDED))
        async with made(clock).connect() as app:
            await app.send(RUN, "news", "hello")
        async with made(clock) as app:
            while not (asked := await app.approvals(RUN)):
                await asyncio.sleep(0)
            states.append(await put_away(app))
        async with made(clock).connect() as app:
            await app.resolve(RUN, asked[0].item_id, Deny("no"), by="ada")
        return [*states, *await finish(made(clock))]

    told = run(scenario())
    assert told == ["sleeping", "suspended", "suspended", "first", "hello", "Deny", "last"]
    assert called == ["first", "last"]


def test_a_run_lingers_in_memory_before_it_is_put_away(tmp_path: Path) -> None:
    async def scenario() -> list[RunState]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock, linger_seconds=5.0)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.wait_for("news")

        async with app:
            await app.start(work, run_id=RUN)
            await until_idle(app)
            await later(app, clock, 4.9)
            before = await app.handle(RUN).status()
            clock.advance(0.2)
            return [before, await put_away(app)]

    assert run(scenario()) == [RunState.RUNNING, RunState.SUSPENDED]


def test_what_others_write_does_not_keep_a_run_that_waits_in_memory(tmp_path: Path) -> None:
    async def scenario() -> RunState:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock, linger_seconds=5.0)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.wait_for("news")

        async with app:
            await app.start(work, run_id=RUN)
            await until_idle(app)
            for number in range(6):
                await app.send(RUN, "other", number)
                await later(app, clock, 1.0)
            return await put_away(app)

    assert run(scenario()) == RunState.SUSPENDED


def test_a_sibling_that_acts_keeps_a_run_that_waits_in_memory(tmp_path: Path) -> None:
    async def scenario() -> tuple[RunState, list[Any], int]:
        app = waiting_app(tmp_path)
        acting, go = asyncio.Event(), asyncio.Event()

        @operation(read_only=True)
        async def act() -> str:
            acting.set()
            await go.wait()
            return "acted"

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            async def wait(branch: Context) -> Any:
                return await branch.wait_for("news")

            one = asyncio.create_task(wait(context.branch("one")))
            two = asyncio.create_task(context.branch("two").call(act))
            return [await one, await two]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await acting.wait()
            await ticks(app)
            beside = await handle.status()
            # Served where it waits, while its sibling acts.
            await app.send(RUN, "news", 7)
            while not (await app.messages(RUN))[0].taken_by:
                await asyncio.sleep(0)
            go.set()
            result = await handle.result()
            return beside, result, len(await app.store.list_attempts(RUN))

    assert run(scenario()) == (RunState.RUNNING, [7, "acted"], 1)


def test_a_wait_that_code_gave_up_neither_wakes_the_run_nor_keeps_it(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Any], int]:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            waits = [
                asyncio.create_task(context.branch(name).wait_for(name)) for name in ("a", "b")
            ]
            done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            first = [task.result() for task in done]
            return [*first, await context.wait_for("c")]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "b", "B")
            while not (await app.messages(RUN))[0].taken_by:
                await asyncio.sleep(0)
            await put_away(app)
            claims = len(await app.store.list_attempts(RUN))
            await ticks(app, 10)
            spun = len(await app.store.list_attempts(RUN)) - claims
            await app.send(RUN, "c", "C")
            return await handle.result(), spun

    assert run(scenario()) == (["B", "C"], 0)


def test_a_store_that_refuses_to_put_a_run_away_has_it_executed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        refused = 0

        @app.run(version=1)
        async def work(context: Context) -> Any:
            return await context.wait_for("news")

        async with app:
            park = app.store.park_run

            async def refuses(*args: Any, **options: Any) -> RunState:
                nonlocal refused
                refused += 1
                if refused == 1:
                    raise StorageError("not now")
                return await park(*args, **options)

            monkeypatch.setattr(app.store, "park_run", refuses)
            handle = await app.start(work, run_id=RUN)
            while not refused:
                await asyncio.sleep(0)
            await until_given_up(app)
            await put_away(app)
            await app.send(RUN, "news", 1)
            return await handle.result()

    assert run(scenario()) == 1


def test_a_run_that_takes_what_it_waits_for_on_its_way_out_goes_on(tmp_path: Path) -> None:
    """Code may hold up its cancellation, as task groups do for a moment."""

    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            inner = asyncio.ensure_future(context.branch("inner").wait_for("news"))
            try:
                return await asyncio.shield(inner)
            except asyncio.CancelledError:
                await inner
                raise

        async with app:
            handle = await app.start(work, run_id=RUN)
            worker = app.engine._worker
            assert worker is not None
            await until_idle(app)
            execution = worker._executions[RUN]
            await until(lambda: execution.reason is not None)
            await app.send(RUN, "news", 7)
            return await handle.result()

    assert run(scenario()) == 7


def test_one_look_does_not_tell_that_a_run_only_waits(tmp_path: Path) -> None:
    """Its code may be on its way from one task to another, which takes a few turns of the loop."""

    async def scenario() -> list[bool]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock, poll_seconds=3600.0)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.wait_for("news")

        async with app:
            await app.start(work, run_id=RUN)
            worker = app.engine._worker
            assert worker is not None
            execution = worker._executions[RUN]
            await until(lambda: execution._performer is not None)
            performer = execution._performer
            assert performer is not None
            await until(lambda: performer.activity.idle() is not None)
            return [execution.idles(clock, 0.0, at_once=True) for _ in range(2)]

    assert run(scenario()) == [False, True]


def test_a_branch_that_awaits_what_is_no_operation_keeps_a_run_in_memory(tmp_path: Path) -> None:
    async def scenario() -> tuple[RunState, list[Any], int]:
        app = waiting_app(tmp_path)
        slow = asyncio.Event()

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            async def wait(branch: Context) -> Any:
                return await branch.wait_for("news")

            async def read(branch: Context) -> str:
                await branch.now()
                await slow.wait()
                return "read"

            branches = (wait(context.branch("wait")), read(context.branch("read")))
            return [*await asyncio.gather(*branches)]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await ticks(app, 20)
            before = await handle.status()
            slow.set()
            await put_away(app)
            await app.send(RUN, "news", "heard")
            result = await handle.result()
            return before, result, len(await app.store.list_attempts(RUN))

    assert run(scenario()) == (RunState.RUNNING, ["heard", "read"], 2)


def test_branches_of_one_task_do_not_keep_a_run_in_memory(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            await context.branch("first").now()
            inner = context.branch("second").branch("inner" * 15)
            return await inner.wait_for("news")

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "news", "heard")
            return await handle.result()

    assert run(scenario()) == "heard"


def test_short_waits_give_up_a_place_that_another_run_needs(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path, concurrency=1, linger_seconds=3600.0)

        @app.run(version=1)
        async def child(context: Context) -> str:
            del context
            return "done"

        @app.run(version=1)
        async def parent(context: Context) -> str:
            async def beat(branch: Context) -> None:
                while True:
                    await branch.sleep(0.01)

            heart = asyncio.create_task(beat(context.branch("heart")))
            below = await context.start_child(child)
            result = await below.result()
            heart.cancel()
            return result

        async with app:
            return await (await app.start(parent, run_id=RUN)).result()

    assert run(scenario()) == "done"
