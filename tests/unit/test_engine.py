from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RunState,
)
from perdure.errors import (
    EngineClosed,
    InvalidInvocation,
    InvalidPayload,
    RunCancelled,
    RunConflict,
    StorageError,
    UnknownFunction,
    UnknownRun,
)
from tests.harness import (
    RUN,
    Pause,
    app_on,
    attempts,
    operations,
    paused_app,
    run,
)

pytestmark = pytest.mark.usefixtures("storage")


def echo_app(folder: Path, seen: list[Any] | None = None) -> App:
    """Return an App whose one function calls one operation with its input."""
    app = app_on(folder)

    async def echo(value: Any) -> Any:
        if seen is not None:
            seen.append(value)
        return value

    @app.run(version=1, name="work")
    async def work(context: Context, value: Any) -> Any:
        return await context.call(echo, value)

    @app.run(version=1, name="other")
    async def other(context: Context, value: Any) -> Any:
        return value

    return app


def test_a_run_is_started_once_by_id_and_input(tmp_path: Path) -> None:
    seen: list[Any] = []
    app = echo_app(tmp_path, seen)

    async def main() -> None:
        async with app:
            first = await app.start("work", {"a": 1, "b": 2}, run_id=RUN)
            again = await app.start("work", {"b": 2, "a": 1}, run_id=RUN)
            assert await first.result() == await again.result() == {"a": 1, "b": 2}
            assert await (await app.start("work", {"a": 1, "b": 2}, run_id=RUN)).result()
            with pytest.raises(RunConflict, match="exists with another input"):
                await app.start("work", {"a": 2}, run_id=RUN)
            with pytest.raises(RunConflict, match="calls 'work', not 'other'"):
                await app.start("other", {"a": 1, "b": 2}, run_id=RUN)

    run(main())
    assert len(seen) == 1
    assert app.observer.counts["perdure_run_started_total"] == 1


def test_a_start_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    app = echo_app(tmp_path)

    async def work(context: Context) -> None:
        """Never registered."""

    async def main() -> None:
        async with app.connect():
            for function, complaint in [
                ("nothing", "no run function 'nothing' is registered; there is: other@1, work@1"),
                (work, "work is not a run function; put @app.run"),
            ]:
                with pytest.raises(UnknownFunction, match=complaint):
                    await app.start(function)
            for version in (0, 2):
                with pytest.raises(UnknownFunction, match=f"'work@{version}'"):
                    await app.start("work", version=version)
            with pytest.raises(InvalidInvocation, match="the run id 'a b' is not an identifier"):
                await app.start("work", run_id="a b")
            with pytest.raises(InvalidPayload, match=r"input\.x is an object"):
                await app.start("work", {"x": object()})
            assert list(await app.store.list_runs(state=None, limit=9)) == []
            with pytest.raises(UnknownRun, match="no run 'run-1'"):
                await app.handle(RUN).status()
            with pytest.raises(UnknownRun):
                await app.handle(RUN).cancel()
            with pytest.raises(UnknownRun):
                await app.resume(RUN)

    run(main())


def test_runs_that_differ_in_one_input_field_share_nothing(tmp_path: Path) -> None:
    """T07"""
    seen: list[Any] = []
    app = echo_app(tmp_path, seen)
    inputs = [{"amount": 5, "tenant": tenant} for tenant in "ab"]

    async def main() -> list[Any]:
        async with app:
            handles = [await app.start("work", value) for value in inputs]
            return [await handle.result() for handle in handles]

    assert run(main()) == inputs
    assert seen == inputs


def test_one_app_starts_what_another_one_executes(tmp_path: Path) -> None:
    async def main() -> None:
        starter, worker = echo_app(tmp_path), echo_app(tmp_path)
        async with starter.connect():
            handle = await starter.start("work", 7, run_id=RUN)
            assert await handle.status() == RunState.PENDING
            waiting = [asyncio.create_task(handle.result()) for _ in range(2)]
            async with worker:
                assert await asyncio.gather(*waiting) == [7, 7]
            assert starter.observer.counts["perdure_run_claimed_total"] == 0

    run(main())


def test_a_cancellation_reaches_the_worker_of_another_app(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        starter, worker = (paused_app(tmp_path, pause) for _ in range(2))
        async with worker, starter.connect():
            handle = await starter.start("work", 1)
            await pause.reached.wait()
            assert await handle.cancel() == RunState.CANCELLING
            with pytest.raises(RunCancelled):
                await handle.result()

    run(main())


def test_the_news_of_an_end_survives_a_store_that_refuses_to_tell(tmp_path: Path) -> None:
    async def main() -> None:
        starter, worker = echo_app(tmp_path), echo_app(tmp_path)
        async with starter.connect():
            handle = await starter.start("work", 7, run_id=RUN)
            waiting = asyncio.create_task(handle.result())
            genuine = starter.store.read_settled
            refused: list[int] = []

            async def refuse_once(run_ids: Any) -> Any:
                if (await starter.find(RUN)).state.settled and not refused:
                    refused.append(1)
                    raise StorageError("not now")
                return await genuine(run_ids)

            setattr(starter.store, "read_settled", refuse_once)  # noqa: B010
            async with worker:
                await worker.handle(RUN).result()
            assert await waiting == 7
            assert refused == [1]

    run(main())


def test_whoever_waits_for_a_result_is_told_when_the_app_closes(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        app = paused_app(tmp_path, pause)
        async with app:
            handle = await app.start("work", 1)
            impatient = asyncio.create_task(handle.result())
            patient = asyncio.create_task(handle.result())
            await pause.reached.wait()
            impatient.cancel()
            await asyncio.wait([impatient])
        with pytest.raises(EngineClosed, match="closed before the run ended"):
            await patient

    run(main())


def test_the_journal_says_what_was_done(tmp_path: Path) -> None:
    app = echo_app(tmp_path)

    async def main() -> None:
        async with app:
            await (await app.start("work", [1], run_id=RUN)).result()
            assert await app.store.read_run_input(RUN) == b"[1]"
            assert await app.store.read_input(RUN, "call", 1) == b'{"args":[[1]],"kwargs":{}}'

    run(main())
    (row,) = run(operations(app))
    assert (row.kind, row.status, row.generation) == ("tool_call", "success", 1)
    assert (row.input_bytes, row.payload_bytes) == (26, 3)
    (attempt,) = run(attempts(app))
    assert (attempt.generation, attempt.executed, attempt.replayed) == (1, 1, 0)
