from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from perdure import (
    Context,
    RunFailed,
    operation,
)
from tests.harness import (
    RUN,
    Pause,
    app_on,
    attempts,
    finish,
    interrupt,
    keys,
    run,
    until,
)


@pytest.mark.parametrize("ending", ["failed", "completed"])
def test_what_a_run_leaves_behind_is_ended_before_the_run_is(tmp_path: Path, ending: str) -> None:
    app = app_on(tmp_path)
    seen: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        @operation(read_only=True)
        async def endless() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append((await app.find(RUN)).state.value)

        @app.run(version=1)
        async def work(context: Context) -> None:
            branch = context.branch("left")
            left = asyncio.create_task(branch.call(endless))
            await begun.wait()
            left.add_done_callback(lambda _: seen.append("over"))
            if ending == "failed":
                raise ValueError

        async with app:
            handle = await app.start(work, run_id=RUN)
            if ending == "failed":
                with pytest.raises(RunFailed):
                    await handle.result()
            else:
                await handle.result()
            seen.append((await app.find(RUN)).state.value)

    run(main())
    assert seen == ["running", "over", ending]
    assert run(keys(app)) == []


def test_a_sync_operation_is_waited_for_however_often_it_is_cancelled(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        go = False

        def stubborn() -> None:
            loop.call_soon_threadsafe(begun.set)
            while not go:
                time.sleep(0)
            seen.append("thread")

        @app.run(version=1)
        async def work(context: Context) -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await context.call(stubborn)
            except asyncio.CancelledError:
                seen.append("code")
                raise

        async with app:
            handle = await app.start(work, run_id=RUN)
            await begun.wait()
            (task,) = (t for t in asyncio.all_tasks() if t.get_name() == f"perdure {RUN}")
            await handle.cancel()
            await until(lambda: task.cancelling() > 0)
            for _ in range(5):
                task.cancel()
                await asyncio.sleep(0)
            assert (seen, task.done()) == ([], False)
            go = True
            await until(task.done)

    run(main())
    assert seen == ["thread", "code"]
    assert [entry.ending for entry in run(attempts(app))] == ["cancelled"]


def test_what_a_handler_makes_of_its_cancellation_is_not_recorded(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> str:
        pause = Pause()

        @operation(read_only=True)
        async def translating() -> str:
            try:
                await pause()
            except asyncio.CancelledError:
                raise ConnectionError("aborted") from None
            return "whole"

        @app.run(version=1)
        async def work(context: Context) -> str:
            return await context.call(translating)

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == "whole"
    assert [entry.ending for entry in run(attempts(app))] == ["released", "completed"]
