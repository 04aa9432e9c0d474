from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RunFailed,
    RunState,
    operation,
)
from perdure.errors import (
    LeaseLost,
    RunCancelled,
)
from tests.harness import (
    RUN,
    Pause,
    app_on,
    attempts,
    finish,
    interrupt,
    keys,
    once,
    run,
    until,
)


async def ask(number: int) -> int:
    return number


def test_pending_running_and_finished_runs_are_cancelled(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    ends: list[str] = []

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> str:
            await context.call(ask, 1)
            try:
                await pause()
            finally:
                ends.append("cleaned up")
            return "done"

        async with app.connect():
            pending = await app.start(work, run_id="pending")
            assert await pending.cancel() == RunState.CANCELLED
        async with app:
            running = await app.start(work, run_id="running")
            await pause.reached.wait()
            assert await running.cancel() == RunState.CANCELLING
            for handle in (running, app.handle("pending")):
                with pytest.raises(RunCancelled, match=f"run {handle.run_id} was cancelled"):
                    await handle.result()
            assert ends == ["cleaned up"]
            pause.open = True
            finished = await app.start(work, run_id="finished")
            assert await finished.result() == "done"
            assert await finished.cancel() == RunState.COMPLETED
            assert await finished.result() == "done"

    run(main())
    assert run(keys(app, "running")) == [("call", 1)]
    assert run(attempts(app, "pending")) == []


def test_code_that_ignores_its_cancellation_ends_as_it_likes(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> str:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                await pause()
            except asyncio.CancelledError:
                return str(await context.call(ask, 1))
            return "?"

        async with app:
            handle = await app.start(work, run_id=RUN)
            await pause.reached.wait()
            await handle.cancel()
            return await handle.result()

    assert run(main()) == "1"


class OddSignal(BaseException):
    """What no code expects."""


RAISES: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exception": (lambda: ValueError("x"), "ValueError"),
    "odd": (OddSignal, "OddSignal"),
    "exit": (lambda: SystemExit(3), "SystemExit"),
    "group": (lambda: BaseExceptionGroup("g", [OddSignal()]), "BaseExceptionGroup"),
    "cancelled": (asyncio.CancelledError, "CancelledError"),
}


@pytest.mark.parametrize("kind", RAISES)
@pytest.mark.parametrize("where", ["run", "operation", "thread"])
def test_whatever_a_run_raises_is_how_it_ends(tmp_path: Path, kind: str, where: str) -> None:
    make, code = RAISES[kind]
    app = app_on(tmp_path)

    @operation(read_only=True)
    def fail() -> None:
        raise make()

    @operation(read_only=True)
    async def fail_later() -> None:
        raise make()

    @app.run(version=1)
    async def work(context: Context) -> None:
        if where == "run":
            raise make()
        await context.call(fail if where == "thread" else fail_later)

    with pytest.raises(RunFailed) as caught:
        run(once(app, work))
    assert caught.value.code == code
    assert [entry.ending for entry in run(attempts(app))] == ["failed"]


def test_a_group_with_a_lost_lease_in_it_says_nothing_about_the_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        raise BaseExceptionGroup("of a task group", [ValueError(), LeaseLost(RUN)])

    async def main() -> None:
        async with app:
            await app.start(work, run_id=RUN)
            await until(lambda: app.observer.counts["perdure_lease_lost_total"] == 1)

    run(main())
    assert [entry.ending for entry in run(attempts(app))] == ["released"]


def test_an_error_out_of_cut_short_code_does_not_fail_the_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> str:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                await pause()
            except asyncio.CancelledError:
                raise ConnectionError from None
            return "done"

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == "done"


def test_a_run_that_is_cut_short_from_outside_is_not_failed(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> str:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> str:
            await pause()
            return "done"

        async with app:
            await app.start(work, run_id=RUN)
            await pause.reached.wait()
            (task,) = (t for t in asyncio.all_tasks() if t.get_name() == f"perdure {RUN}")
            task.cancel()
            await asyncio.wait([task])
        pause.open = True
        return await finish(app)

    assert run(main()) == "done"


def test_a_result_that_cannot_be_stored_fails_the_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> Any:
        return {"when": {object()}}

    with pytest.raises(RunFailed, match=r"result\.when\[0\] is an object"):
        run(once(app, work))


def test_a_run_that_raises_what_closes_coroutines_fails(tmp_path: Path) -> None:
    async def main() -> None:
        app = App(f"sqlite:///{tmp_path / 'runs.db'}")

        @app.run(version=1)
        async def odd(context: Context) -> None:
            raise GeneratorExit

        async with app:
            handle = await app.start(odd)
            with pytest.raises(RunFailed, match="GeneratorExit"):
                await handle.result()
            assert len(await app.store.list_attempts(handle.run_id)) == 1

    run(main())
