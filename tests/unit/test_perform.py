from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationFailed, RetryPolicy, RunFailed, RunState, operation
from perdure.errors import (
    DuplicateOperation,
    RunNeedsAttention,
    StorageBusy,
    StorageError,
    StorageFull,
)
from perdure.journal import OperationKind, Outcome, Success
from perdure.testing.manual_clock import ManualClock
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


class TooManyRequestsError(Exception):
    """What a server says that wants its caller to wait."""

    retry_after = 10


class Flaky:
    """Fails as often as it is told to, and remembers when it was called."""

    def __init__(self, clock: ManualClock, failures: int) -> None:
        self.clock = clock
        self.failures = failures
        self.called_at: list[float] = []

    async def __call__(self) -> str:
        self.called_at.append(self.clock.monotonic())
        if len(self.called_at) <= self.failures:
            raise TooManyRequestsError
        return "done"


def flaky_app(folder: Path, failures: int, tries: int) -> tuple[App, ManualClock, Flaky, Any]:
    clock = ManualClock()
    flaky = Flaky(clock, failures)
    policy = RetryPolicy(attempts=tries, maximum_seconds=60)
    declared = operation(name="flaky", retry=policy)(flaky)
    app = app_on(folder, clock=clock)

    @app.run(version=1)
    async def work(context: Context) -> str:
        return await context.call(declared)

    return app, clock, flaky, work


def test_a_retry_waits_and_a_resumed_one_waits_for_what_remains(tmp_path: Path) -> None:
    app, clock, flaky, work = flaky_app(tmp_path, failures=2, tries=3)

    async def main() -> str:
        async with app:
            await app.start(work, run_id=RUN)
            await clock.until_sleeping()
            clock.advance(10)
            await until(lambda: len(flaky.called_at) == 2)
            await clock.until_sleeping()
            clock.advance(4)
        async with app:
            await clock.until_sleeping()
            assert list(clock.sleeping) == [6.0]
            clock.advance(6)
            return await app.handle(RUN).result()

    assert run(main()) == "done"
    assert flaky.called_at == [0, 10, 20]
    rows = run(operations(app))
    assert [(row.step_id, row.sequence, row.status, row.attempt) for row in rows] == [
        ("call.1.retry", 1, "success", 1),
        ("call.1.retry", 2, "success", 1),
        ("call", 1, "success", 3),
    ]
    assert app.observer.counts["perdure_operation_retried_total"] == 2


def test_a_closed_app_between_two_tries_does_not_count_them_anew(tmp_path: Path) -> None:
    app, clock, flaky, work = flaky_app(tmp_path, failures=9, tries=2)

    async def main() -> None:
        async with app:
            await app.start(work, run_id=RUN)
            await clock.until_sleeping()
        async with app:
            await clock.until_sleeping()
            clock.advance(10)
            with pytest.raises(RunFailed, match="TooManyRequestsError"):
                await app.handle(RUN).result()

    run(main())
    assert flaky.called_at == [0, 10]


class KeywordError(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(f"because of {reason}")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def caused() -> Exception:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        return error


FAILURES: dict[str, tuple[Callable[[], Exception], str, str]] = {
    "builtin": (lambda: ValueError("no"), "ValueError", "no"),
    "keyword-only": (lambda: KeywordError(reason="x"), "KeywordError", "because of x"),
    "cause": (caused, "ValueError", "second"),
    "group": (
        lambda: ExceptionGroup("both", [ValueError(1), KeyError(2)]),
        "ExceptionGroup",
        "both (2 sub-exceptions)",
    ),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError", "\\ud800"),
    "no-message": (
        SilentError,
        "SilentError",
        "it has no message: its __str__ raises RuntimeError",
    ),
    "odd-name": (type("Größe", (Exception,), {}), "Gr__e", ""),
    "operation": (
        lambda: OperationFailed("k", code="Code", message="m", data={"a": 1}, retryable=True),
        "Code",
        "m",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_failure_is_the_same_on_the_first_execution_and_on_replay(
    tmp_path: Path, kind: str, asynchronous: bool
) -> None:
    make, code, message = FAILURES[kind]
    app = app_on(tmp_path)
    calls: list[int] = []
    seen: list[tuple[Any, ...]] = []

    async def main() -> None:
        pause = Pause()

        def fail() -> None:
            calls.append(1)
            raise make()

        async def fail_later() -> None:
            fail()

        @app.run(version=1)
        async def work(context: Context) -> None:
            try:
                await context.call(fail_later if asynchronous else fail)
            except OperationFailed as error:
                vars(error).pop("__notes__", None)
                seen.append((type(error), str(error), vars(error)))
            await pause()

        await interrupt(app, pause, work)
        await finish(app)

    run(main())
    assert calls == [1]
    first, second = seen
    assert first == second
    assert (first[2]["code"], first[2]["message"]) == (code, message)


def test_stop_iteration_out_of_a_thread_is_a_failure_and_no_stuck_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    def first(numbers: list[int]) -> int:
        return next(iter(numbers))

    @app.run(version=1)
    async def work(context: Context) -> None:
        with pytest.raises(OperationFailed, match="the function raised StopIteration"):
            await context.call(first, [])

    run(once(app, work))


def test_a_large_outcome_is_replayed_whole(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> int:
        pause = Pause()

        async def large() -> str:
            return "x" * 100_000

        @app.run(version=1)
        async def work(context: Context) -> int:
            length = len(await context.call(large))
            await pause()
            return length

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == 100_000


def test_one_identity_asked_for_twice_is_refused(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    calls: list[int] = []

    async def main() -> None:
        release = asyncio.Event()

        async def handler() -> Outcome:
            calls.append(1)
            await release.wait()
            return Success(b"1")

        @app.run(version=1)
        async def work(context: Context) -> None:
            def ask() -> Awaitable[Any]:
                return context.perform(OperationKind.TOOL_CALL, "tool", 7, "tools", b"{}", handler)

            live = asyncio.ensure_future(ask())
            await until(lambda: bool(calls))
            with pytest.raises(DuplicateOperation, match=f"{RUN}/tool/7 is asked for twice"):
                await ask()
            release.set()
            await live
            with pytest.raises(DuplicateOperation):
                await ask()

        await once(app, work)

    run(main())
    assert calls == [1]


async def one() -> int:
    return 1


def refuse(app: App, method: str, *errors: Exception) -> None:
    """Make the open store refuse as often as there are errors, and obey then."""
    genuine = getattr(app.store, method)
    left = list(errors)

    async def refusing(*args: Any) -> Any:
        if left:
            raise left.pop(0)
        return await genuine(*args)

    setattr(app.store, method, refusing)


def one_call(app: App) -> Any:
    @app.run(version=1)
    async def work(context: Context) -> int:
        return await context.call(one)

    return work


@pytest.mark.parametrize("method", ["append_record", "end_run"])
def test_a_busy_or_full_store_is_waited_for(tmp_path: Path, method: str) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock)
    work = one_call(app)

    async def main() -> int:
        async with app:
            refuse(app, method, StorageBusy("busy"), StorageFull("full"))
            handle = await app.start(work, run_id=RUN)
            for pause in (0.05, 0.1):
                await clock.until_sleeping()
                clock.advance(pause)
            return await handle.result()

    assert run(main()) == 1
    assert app.observer.counts["perdure_operation_executed_total"] == 1
    assert len(run(attempts(app))) == 1


@pytest.mark.parametrize("method", ["append_record", "end_run", "begin_timer", "read_journal"])
def test_a_run_whose_store_refuses_is_given_back_and_completes_later(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> int:
        number = 0
        for _ in range(2):
            # Code that makes an answer of every error must not get on without the operation.
            try:
                await context.sleep(0)
                number += await context.call(one)
            except Exception:
                number += 10
        return number

    async def main() -> int:
        async with app.connect():
            await app.start(work, run_id=RUN)
        sql(tmp_path, "UPDATE runs SET generation = 5")
        async with app:
            refuse(app, method, StorageError("the disk is on fire"))
            return await app.handle(RUN).result()

    assert run(main()) == 2
    assert [entry.ending for entry in run(attempts(app))] == ["released", "completed"]
    assert "stops here, to go on later: the disk is on fire" in caplog.text


def test_an_operation_around_a_refused_one_is_not_recorded(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        async def outer() -> str:
            try:
                return str(await context.branch("inner").call(one))
            except Exception:
                return "swallowed"

        return await context.call(outer)

    async def main() -> str:
        async with app:
            refuse(app, "append_record", StorageError("no"))
            return await (await app.start(work, run_id=RUN)).result()

    assert run(main()) == "1"


def test_a_stolen_run_writes_nothing_and_is_not_failed(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    after: list[str] = []

    async def steal() -> None:
        sql(tmp_path, "UPDATE runs SET holder = 'thief', generation = generation + 1")

    @app.run(version=1)
    async def work(context: Context) -> str:
        try:
            await context.call(steal)
        except BaseException as signal:
            after.append(type(signal).__name__)
        try:
            await context.call(one)
        except BaseException as signal:
            after.append(type(signal).__name__)
        return "finished after all"

    async def main() -> None:
        async with app:
            await app.start(work, run_id=RUN)
            await until(lambda: app.observer.counts["perdure_lease_lost_total"] == 1)
            row = await app.find(RUN)
            assert (row.state, row.holder, row.generation) == (RunState.RUNNING, "thief", 2)

    run(main())
    assert after == ["LeaseLost", "LeaseLost"]
    assert run(keys(app)) == []
    assert app.observer.counts["perdure_lease_fencing_rejected_total"] == 1
    assert app.observer.counts["perdure_operation_executed_total"] == 1


@pytest.mark.parametrize("ending", ["failed", "completed"])
def test_what_a_run_leaves_behind_is_ended_before_the_run_is(tmp_path: Path, ending: str) -> None:
    app = app_on(tmp_path)
    seen: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

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


def test_an_operation_around_a_mismatch_is_not_recorded(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        async def outer(context: Context, number: int) -> str:
            try:
                return str(await context.call(abs, number))
            except BaseException:
                return "swallowed"

        @app.run(version=1)
        async def work(context: Context) -> None:
            branch = context.branch("inner")

            @operation(name="outer")
            async def ask() -> None:
                await outer(branch, 2 if pause.open else 1)
                await pause()

            await context.call(ask)

        await interrupt(app, pause, work)
        with pytest.raises(RunNeedsAttention, match=f"{RUN}/branch.inner.1.call/1"):
            await finish(app)

    run(main())
    assert run(keys(app)) == [("branch.inner.1.call", 1)]
