from __future__ import annotations

import asyncio
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState
from perdure.engine.worker import Worker
from perdure.engine.workers import WorkerNews
from perdure.errors import RunCancelled, StorageError, StorageFull
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Pause, app_on, attempts, paused_app, run, sql, until
from tests.storages import SQLITE_ONLY

pytestmark = pytest.mark.usefixtures("storage")


def worker_of(app: App) -> Worker:
    worker = app.engine._worker
    assert worker is not None
    return worker


async def holder_of(app: App) -> str:
    (entry,) = await app.store.list_workers()
    return entry.holder


def lose_lease(folder: Path) -> None:
    """Take every worker's lease and runs, as a sweep of another process does."""
    sql(folder, "UPDATE workers SET gone = 1")
    sql(folder, "UPDATE runs SET holder = NULL, state = 'pending' WHERE holder IS NOT NULL")


@pytest.fixture
def often_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a lease of an hour, which cannot run out in a test, renewed many times a second."""
    monkeypatch.setattr("perdure.engine.lease._RENEWALS_A_LEASE", 3600 * 50)


def test_no_more_runs_are_executed_at_once_than_allowed(tmp_path: Path) -> None:
    app = app_on(tmp_path, concurrency=3)

    async def main() -> None:
        go = asyncio.Event()
        running: set[str] = set()
        most = 0

        @app.run(version=1)
        async def work(context: Context, number: int) -> int:
            nonlocal most
            running.add(context.run_id)
            most = max(most, len(running))
            await go.wait()
            running.discard(context.run_id)
            return number

        async with app:
            handles = await asyncio.gather(*(app.start(work, n) for n in range(8)))
            await until(lambda: len(running) == 3)
            states = [await handle.status() for handle in handles]
            assert states.count(RunState.RUNNING) == 3
            go.set()
            assert [await handle.result() for handle in handles] == [*range(8)]
        assert most == 3

    run(main())


HERE: ContextVar[str] = ContextVar("here", default="nowhere")


def test_a_run_sees_the_context_in_which_its_app_was_opened(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        try:
            return HERE.get()
        finally:
            HERE.set("a run")

    async def main() -> list[str]:
        HERE.set("where it was opened")
        async with app.connect():
            waiting = await app.start(work)
        async with app:
            HERE.set("where it was started")
            return [
                await (await app.start(work)).result(),
                await app.handle(waiting.run_id).result(),
            ]

    assert run(main()) == ["where it was opened"] * 2


@pytest.mark.usefixtures("often_renewed")
def test_a_run_whose_starter_was_cancelled_is_executed_all_the_same(tmp_path: Path) -> None:
    async def main() -> Any:
        pause = Pause()
        pause.open = True
        app = paused_app(tmp_path, pause)
        async with app:
            starting = asyncio.create_task(app.start("work", 7, run_id=RUN))
            await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            while await app.store.read_run(RUN) is None:
                await asyncio.sleep(0)
            return await app.handle(RUN).result()

    assert run(main()) == 7
    assert [entry.ending for entry in run(attempts(app_on(tmp_path)))] == ["released", "completed"]


def test_news_that_overtakes_a_claim_does_not_give_the_run_back(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        app = paused_app(tmp_path, pause)
        async with app:
            worker = worker_of(app)
            starting = asyncio.create_task(app.start("work", 7, run_id=RUN))
            await asyncio.sleep(0)
            for _ in range(2):  # both renewals of a time in which the loop was blocked
                worker._hear(WorkerNews(frozenset({(RUN, 1)}), frozenset()))
            await starting
            await pause.reached.wait()
            await asyncio.gather(*worker._chores)
            assert (await app.find(RUN)).state == RunState.RUNNING

    run(main())


def test_a_cancellation_that_comes_before_the_first_step_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        pause, seen = Pause(), list[str]()
        app = paused_app(tmp_path, pause, seen)
        async with app:
            handle = await app.start("work", 7, run_id=RUN)
            worker_of(app)._cancel([RUN])
            with pytest.raises(RunCancelled):
                await handle.result()
            await until(lambda: not worker_of(app).executes(RUN))
        assert seen == []

    run(main())


@pytest.mark.usefixtures("often_renewed")
def test_a_worker_whose_lease_was_taken_stops_and_begins_anew(tmp_path: Path) -> None:
    async def main() -> Any:
        pause = Pause()
        app = paused_app(tmp_path, pause)
        async with app:
            await app.start("work", 7, run_id=RUN)
            await pause.reached.wait()
            before = await holder_of(app)
            lose_lease(tmp_path)
            pause.open = True
            assert await app.handle(RUN).result() == 7
            assert await holder_of(app) != before
        return app.observer.counts

    counts = run(main())
    assert counts["perdure_lease_lost_total"] >= 1
    assert counts["perdure_run_claimed_total"] == 2
    assert [entry.generation for entry in run(attempts(app_on(tmp_path)))] == [1, 2]


def test_a_worker_that_cannot_renew_stops_and_takes_its_runs_up_again(tmp_path: Path) -> None:
    async def main() -> Any:
        pause = Pause()
        app = paused_app(tmp_path, pause, lease_seconds=1.0)
        async with app:
            await app.start("work", 7, run_id=RUN)
            await pause.reached.wait()
            pause.open = True
            before = worker_of(app)._lease
            genuine = app.store.renew_worker

            def refuse(holder: str, lease_seconds: float) -> WorkerNews:
                raise StorageError("cut off")

            setattr(app.store, "renew_worker", refuse)  # noqa: B010 - a protocol's method
            await until(lambda: worker_of(app)._lease is not before)
            setattr(app.store, "renew_worker", genuine)  # noqa: B010
            return await app.handle(RUN).result()

    assert run(main()) == 7
    *others, last = [entry.ending for entry in run(attempts(app_on(tmp_path)))]
    # On a slow machine it may lose the lease once more.
    assert others
    assert ({*others}, last) == ({"lost"}, "completed")


@SQLITE_ONLY
def test_a_live_worker_takes_over_from_one_that_went_silent(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        pause = Pause()
        silent = paused_app(tmp_path, pause, clock=clock)
        other = paused_app(tmp_path, pause, clock=clock, lease_seconds=90000.0)
        async with silent:
            await silent.start("work", 7, run_id=RUN)
            await pause.reached.wait()
            async with other:
                assert (await other.find(RUN)).holder is not None
                pause.open = True
                clock.advance(3601)
                assert await other.handle(RUN).result() == 7
                assert other.observer.counts["perdure_run_recovered_total"] == 1

    run(main())
    assert [entry.ending for entry in run(attempts(app_on(tmp_path)))] == ["lost", "completed"]


def test_a_worker_leaves_alone_what_another_one_still_owns(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        pause = Pause()
        owner = paused_app(tmp_path, pause, clock=clock)
        other = paused_app(tmp_path, pause, clock=clock)
        async with owner, other:
            handle = await owner.start("work", 7, run_id=RUN)
            await pause.reached.wait()
            clock.advance(3599)
            assert await other.store.sweep(await worker_holder(other)) == 0
            assert await handle.status() == RunState.RUNNING

    async def worker_holder(app: App) -> str:
        return (await app.store.list_workers())[1].holder

    run(main())


def test_an_unexpected_error_does_not_strand_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> Any:
        pause = Pause()
        pause.open = True
        app = paused_app(tmp_path, pause)
        async with app:
            genuine = app.store.end_run
            bugs: list[Exception] = [ZeroDivisionError()]

            async def end_run(*args: Any) -> RunState:
                if bugs:
                    raise bugs.pop()
                return await genuine(*args)

            setattr(app.store, "end_run", end_run)  # noqa: B010 - a protocol's method
            return await (await app.start("work", 7, run_id=RUN)).result()

    assert run(main()) == 7
    assert "ZeroDivisionError" in caplog.text


def test_an_app_closes_even_if_its_store_does_not_take_the_lease_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        pause = Pause()
        app = paused_app(tmp_path, pause)
        async with app:
            await app.start("work", 7, run_id=RUN)
            await pause.reached.wait()

            async def refuse(holder: str) -> None:
                raise StorageError("full")

            setattr(app.store, "retire_worker", refuse)  # noqa: B010 - a protocol's method

    run(main())
    assert "leaves its runs to its lease's end: full" in caplog.text


def test_an_app_closes_even_if_its_store_stays_full(tmp_path: Path) -> None:
    async def main() -> None:
        pause, tried = Pause(), asyncio.Event()
        pause.open = True
        app = paused_app(tmp_path, pause)
        async with app:

            async def refuse(*args: Any) -> RunState:
                tried.set()
                raise StorageFull("full")

            setattr(app.store, "end_run", refuse)  # noqa: B010 - a protocol's method
            await app.start("work", 7, run_id=RUN)
            await tried.wait()

    run(main())
    assert [entry.ending for entry in run(attempts(app_on(tmp_path)))] == ["released"]


@pytest.mark.parametrize("method", ["sweep", "claim_runs"])
def test_a_waiting_run_is_claimed_although_the_store_refused_at_first(
    tmp_path: Path, method: str
) -> None:
    async def main() -> Any:
        pause = Pause()
        pause.open = True
        app = paused_app(tmp_path, pause)
        async with app.connect():
            await app.start("work", 7, run_id=RUN)
        async with app:
            genuine = getattr(app.store, method)
            refused: list[int] = []

            async def refuse_once(*args: Any, **more: Any) -> Any:
                if refused:
                    return await genuine(*args, **more)
                refused.append(1)
                raise StorageError("not now")

            setattr(app.store, method, refuse_once)
            result = await app.handle(RUN).result()
            assert refused == [1]
            return result

    assert run(main()) == 7
