from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState, operation
from perdure.errors import (
    EngineClosed,
    InvalidInvocation,
    InvalidPayload,
    LeaseLost,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunNeedsAttention,
    StorageError,
    UnknownFunction,
    UnknownRun,
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
    operations,
    run,
    sql,
    until,
)


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
            with pytest.raises(InvalidPayload, match=r"input\.x is a bytes"):
                await app.start("work", {"x": b""})
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


def test_equal_inputs_have_equal_digests_however_they_were_built(tmp_path: Path) -> None:
    """T08"""
    app = app_on(tmp_path)
    calls: list[Any] = []

    async def take(value: Any) -> int:
        calls.append(value)
        return len(calls)

    async def main() -> Any:
        pause = Pause()
        shared: list[Any] = [1, {"k": "v"}]

        @app.run(version=1)
        async def work(context: Context) -> int:
            value = {"a": shared, "b": shared}
            if pause.open:
                value = {"b": [1, {"k": "".join("v")}], "a": [1, {"k": "v"}]}
            number = await context.call(take, value)
            await pause()
            return number

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == 1
    assert len(calls) == 1


def versions_app(folder: Path, pause: Pause, *versions: int) -> App:
    app = app_on(folder)
    for version in versions:

        @app.run(version=version, name="work")
        async def work(context: Context, version: int = version) -> str:
            await pause()
            return f"version {version}"

    return app


def test_a_run_goes_on_with_the_version_it_was_started_on(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        await interrupt(versions_app(tmp_path, pause, 1), pause, "work", 1)
        newest = versions_app(tmp_path, pause, 2)
        async with newest:
            assert await (await newest.start("work", 2, run_id="run-2")).result() == "version 2"
            assert await newest.handle(RUN).status() == RunState.PENDING
            (waiting,) = await newest.store.unserved(newest.functions)
            assert (waiting.run_id, waiting.version) == (RUN, 1)
        both = versions_app(tmp_path, pause, 1, 2)
        assert await finish(both) == "version 1"
        async with both:
            assert await (await both.start("work", 1, version=1)).result() == "version 1"

    run(main())


async def ask(number: int) -> int:
    return number


@operation(name="ask", version=2)
async def ask_anew(number: int) -> int:
    return number


def mismatching(folder: Path, code: str, swallow: type[BaseException] | None, pause: Pause) -> App:
    """Return an App with one of several codes of a run that was recorded by "right"."""
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context) -> str:
        try:
            if code == "handler":
                await context.call(ask_anew, 1)
            else:
                await context.call(ask, 1 if code == "right" else 2)
            await pause()
        except swallow or ():
            await context.call(ask, 3)
        return "done"

    return app


@pytest.mark.parametrize("swallow", [None, Exception, BaseException])
@pytest.mark.parametrize("code", ["input", "handler"])
def test_changed_code_is_parked_at_once_and_goes_on_under_the_right_one(
    tmp_path: Path, code: str, swallow: type[BaseException] | None
) -> None:
    """T13"""
    right, wrong = (hashlib.sha256(b'{"args":[%d],"kwargs":{}}' % n).hexdigest() for n in (1, 2))

    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", None, pause), pause, "work")
        changed = mismatching(tmp_path, code, swallow, pause)
        async with changed:
            with pytest.raises(RunNeedsAttention) as caught:
                await changed.handle(RUN).result()
            assert await changed.handle(RUN).status() == RunState.NEEDS_ATTENTION
        asked = ("'ask'", wrong) if code == "input" else ("'ask.v2'", right)
        for part in (f"{RUN}/call/1", "tool_call by 'ask' with", right, *asked):
            assert part in caught.value.message
        assert caught.value.code == "ReplayMismatch"
        assert changed.observer.counts["perdure_operation_executed_total"] == 0
        repaired = mismatching(tmp_path, "right", None, pause)
        async with repaired:
            row = await repaired.resume(RUN)
            assert (row.state, row.problem, row.finished_at) == (RunState.PENDING, None, None)
            assert await repaired.handle(RUN).result() == "done"

    run(main())
    endings = [entry.ending for entry in run(attempts(app_on(tmp_path)))]
    assert endings == ["released", "needs_attention", "completed"]


def test_a_parked_run_can_be_cancelled(tmp_path: Path) -> None:
    """T13"""

    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", None, pause), pause, "work")
        changed = mismatching(tmp_path, "input", None, pause)
        async with changed:
            with pytest.raises(RunNeedsAttention):
                await changed.handle(RUN).result()
            assert await changed.handle(RUN).cancel() == RunState.CANCELLED
            with pytest.raises(RunCancelled):
                await changed.handle(RUN).result()
            assert (await changed.resume(RUN)).state == RunState.CANCELLED

    run(main())


def test_a_cancellation_asked_for_while_a_run_is_being_parked_is_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", None, pause), pause, "work")
        changed = mismatching(tmp_path, "input", None, pause)
        async with changed.connect():
            await changed.start("work", run_id=RUN)
        async with changed:
            genuine = changed.store.end_run

            async def end_late(*args: Any) -> RunState:
                sql(tmp_path, "UPDATE runs SET cancel_requested = 1")
                return await genuine(*args)

            setattr(changed.store, "end_run", end_late)  # noqa: B010 - a protocol's method
            with pytest.raises(RunCancelled):
                await changed.handle(RUN).result()
            assert (await changed.find(RUN)).state == RunState.CANCELLED

    run(main())
    assert [a.ending for a in run(attempts(app_on(tmp_path)))] == ["released", "cancelled"]


def test_a_new_comment_and_new_unrelated_functions_change_nothing(tmp_path: Path) -> None:
    """T14"""

    async def main() -> str:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", None, pause), pause, "work")
        edited = app_on(tmp_path)

        @edited.run(version=1)
        async def added(context: Context) -> None:
            """Stand in front of the other one."""

        @edited.run(version=1)
        async def work(context: Context) -> str:
            # The same operations, another wording.
            number = await context.call(ask, 1)
            await pause()
            return "done" if number == 1 else "?"

        return await finish(edited)

    assert run(main()) == "done"


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
            assert await running.cancel() == RunState.RUNNING
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

    def fail() -> None:
        raise make()

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


def test_a_result_that_is_no_json_value_fails_the_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> Any:
        return {"when": {1}}

    with pytest.raises(RunFailed, match=r"result\.when is a set"):
        run(once(app, work))


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
        starter, worker = (versions_app(tmp_path, pause, 1) for _ in range(2))
        async with worker, starter.connect():
            handle = await starter.start("work", 1)
            await pause.reached.wait()
            assert await handle.cancel() == RunState.RUNNING
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
        app = versions_app(tmp_path, pause, 1)
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
