from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RetryPolicy, RunFailed, current, operation
from perdure.errors import ForeignTask, InvalidInvocation
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
    until,
)


class Doubler:
    """Doubles numbers and remembers which, and on which thread."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.threads: set[int] = set()

    async def slow(self, number: int) -> int:
        self.note(number)
        return 2 * number

    def fast(self, number: int) -> int:
        self.note(number)
        return 2 * number

    def note(self, number: int) -> None:
        self.seen.append(number)
        self.threads.add(threading.get_ident())


def test_async_and_sync_functions_are_called_once_and_then_answered(tmp_path: Path) -> None:
    doubler = Doubler()
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> list[int]:
            answers = [
                await context.call(doubler.slow, 1),
                await context.call(doubler.fast, number=2),
            ]
            await pause()
            return [*answers, await context.call(doubler.slow, 3)]

        await interrupt(app, pause, work)
        assert await finish(app) == [2, 4, 6]

    run(main())
    assert doubler.seen == [1, 2, 3]
    assert len(doubler.threads) == 2  # the loop's, and one for the function that is not async
    assert app.observer.counts["perdure_operation_executed_total"] == 3
    assert app.observer.counts["perdure_operation_replayed_total"] == 2


def test_gathered_calls_are_numbered_by_their_place_whatever_ends_first(tmp_path: Path) -> None:
    async def main() -> None:
        app = app_on(tmp_path)
        pause, calls = Pause(), list[int]()
        done = [asyncio.Event() for _ in range(4)]

        async def wait(number: int) -> int:
            calls.append(number)
            await done[number + 1].wait() if number < 2 else None
            done[number].set()
            return number

        @app.run(version=1)
        async def work(context: Context) -> list[int]:
            results = await asyncio.gather(*(context.call(wait, n) for n in range(3)))
            await pause()
            return results

        await interrupt(app, pause, work)
        assert await keys(app) == [("call", 3), ("call", 2), ("call", 1)]
        assert await finish(app) == [0, 1, 2]
        assert sorted(calls) == [0, 1, 2]

    run(main())


def test_a_context_is_for_one_task_and_branches_are_for_the_others(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def step(context: Context) -> str:
        async def where() -> str:
            inner = current()
            assert inner is not None
            return inner.namespace

        return await context.call(where)

    @app.run(version=1)
    async def work(context: Context) -> list[Any]:
        await step(context)
        with pytest.raises(ForeignTask, match=r"branch\('name'\)"):
            await asyncio.create_task(step(context))
        twins = [context.branch("side"), context.branch("side")]
        deep = context.branch("other").branch("side")
        return await asyncio.gather(*map(step, [*twins, deep]))

    assert run(once(app, work)) == [
        "branch.side.1.call.1",
        "branch.side.2.call.1",
        "branch.other.1.branch.side.1.call.1",
    ]


def test_a_branch_name_cannot_pose_as_a_nested_one(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        with pytest.raises(InvalidInvocation, match="branch name"):
            context.branch("a.1.branch.b")

    run(once(app, work))


def test_long_namespaces_stay_identifiers_and_distinct(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> list[str]:
        names = ["n" * 100 + end for end in "ab"]
        branches = [context.branch(name) for name in names]
        await asyncio.gather(*(branch.call(str, 1) for branch in branches))
        return [branch.key("call", 1) for branch in branches]

    first, second = run(once(app, work))
    assert first != second
    assert max(map(len, (first, second))) < 128


def test_operations_inside_an_operation_are_not_repeated_when_it_is_retried(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock)
    calls: list[str] = []

    async def inner(name: str) -> str:
        calls.append(name)
        return name

    @operation(read_only=True, retry=RetryPolicy(attempts=2, initial_seconds=0))
    async def outer() -> list[str]:
        context = current()
        assert context is not None
        names = [await context.call(inner, "a")]
        await context.sleep(5)
        calls.append("outer")
        if calls.count("outer") == 1:
            raise ConnectionError
        return [*names, await context.call(inner, "b"), str(context.uuid())]

    @app.run(version=1)
    async def work(context: Context) -> list[str]:
        return await context.call(outer)

    async def main() -> list[str]:
        async with app:
            handle = await app.start(work, run_id=RUN)
            await clock.until_sleeping()
            clock.advance(5)
            return await handle.result()

    result = run(main())
    assert result[:2] == ["a", "b"]
    assert calls == ["a", "outer", "outer", "b"]
    assert run(keys(app)) == [
        ("call.1.call", 1),
        ("call.1.sleep", 1),
        ("call.1.retry", 1),
        ("call.1.call", 2),
        ("call", 1),
    ]
    assert len(run(attempts(app))) == 1


def test_a_sleep_cut_short_inside_an_operation_goes_on_when_it_is_retried(tmp_path: Path) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock)
    tries: list[float] = []

    @operation(read_only=True, retry=RetryPolicy(attempts=2, initial_seconds=0))
    async def outer() -> None:
        context = current()
        assert context is not None
        tries.append(clock.monotonic())
        if len(tries) > 1:
            return await context.sleep(10)
        sleeping = asyncio.create_task(context.sleep(10))
        await clock.until_sleeping()
        clock.advance(4)
        sleeping.cancel()
        raise ConnectionError

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(outer)

    async def main() -> None:
        async with app:
            handle = await app.start(work, run_id=RUN)
            while len(tries) < 2:
                await asyncio.sleep(0)
            await clock.until_sleeping()
            assert list(clock.sleeping) == [6.0]
            clock.advance(6)
            await handle.result()

    run(main())
    assert len(run(attempts(app))) == 1


def test_a_retried_operation_that_was_cut_short_inside_another_keeps_its_tries(
    tmp_path: Path,
) -> None:
    app = app_on(tmp_path)
    calls: list[str] = []

    @operation(read_only=True, retry=RetryPolicy(attempts=2, initial_seconds=0))
    async def inner() -> int:
        calls.append("inner")
        if calls == ["inner"]:
            raise ConnectionError
        if calls == ["inner", "inner"]:
            await asyncio.Event().wait()
        return len(calls)

    @operation(read_only=True, retry=RetryPolicy(attempts=2, initial_seconds=0))
    async def outer() -> int:
        context = current()
        assert context is not None
        if calls:
            return await context.call(inner)
        asking = asyncio.create_task(context.call(inner))
        await until(lambda: len(calls) == 2)
        asking.cancel()
        await asyncio.wait([asking])
        raise ConnectionError

    @app.run(version=1)
    async def work(context: Context) -> int:
        return await context.call(outer)

    assert run(once(app, work)) == 3
    assert [(row.step_id, row.attempt) for row in run(operations(app))] == [
        ("call.1.call.1.retry", 1),
        ("call.1.retry", 1),
        ("call.1.call", 2),
        ("call", 2),
    ]
    assert len(run(attempts(app))) == 1


def test_time_ids_and_chance_are_the_same_on_every_execution(tmp_path: Path) -> None:
    clock = ManualClock(now=1000.0)
    app = app_on(tmp_path, clock=clock)
    seen: list[list[Any]] = []

    async def main() -> list[Any]:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            values = [
                *(moment.timestamp() for moment in await asyncio.gather(context.now())),
                str(context.uuid()),
                str(context.uuid()),
                str(context.branch("b").uuid()),
                context.random().random(),
                context.random().random(),
                context.started_at,
            ]
            seen.append(values)
            await pause()
            return values

        await interrupt(app, pause, work)
        clock.advance(50)
        return await finish(app)

    result = run(main())
    assert seen == [result, result]
    assert len(set(map(str, result[1:6]))) == 5
    assert (result[0], result[6]) == (1000.0, 1000.0)


def test_a_resumed_sleep_waits_for_what_remains(tmp_path: Path) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock)

    @app.run(version=1)
    async def work(context: Context) -> str:
        await context.sleep(10)
        return "awake"

    async def main() -> str:
        async with app:
            await app.start(work, run_id=RUN)
            await clock.until_sleeping()
            clock.advance(4)
        async with app:
            await clock.until_sleeping()
            assert list(clock.sleeping) == [6.0]
            clock.advance(6)
            assert await app.handle(RUN).result() == "awake"
        async with app:
            return await app.handle(RUN).result()

    assert run(main()) == "awake"


@dataclass
class Adder:
    """A callable that, as a dataclass, has no hash."""

    amount: int

    def __call__(self, number: int) -> int:
        return number + self.amount


def test_handler_ids_come_from_names_and_versions(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    doubler = Doubler()

    @operation(name="renamed", version=3)
    async def declared(number: int) -> int:
        return number

    @app.run(version=1)
    async def work(context: Context) -> list[int]:
        return [
            await context.call(doubler.slow, 1),
            await context.call(functools.partial(doubler.fast, 2)),
            await context.call(declared, 3),
            await context.call(functools.partial(declared, 4)),
            await context.call(Adder(4), 1),
        ]

    assert run(once(app, work)) == [2, 4, 3, 4, 5]
    assert [row.handler_id for row in run(operations(app))] == [
        "Doubler.slow",
        "Doubler.fast",
        "renamed.v3",
        "renamed.v3",
        "Adder",
    ]


def test_a_raised_error_ends_the_run_unless_it_is_handled(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @operation(read_only=True)
    async def fail() -> None:
        raise ValueError("no")

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(fail)

    with pytest.raises(RunFailed) as caught:
        run(once(app, work))
    assert (caught.value.code, caught.value.type_name) == ("ValueError", "ValueError")
    assert caught.value.message == "no"
