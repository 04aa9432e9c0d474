from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RetryPolicy,
    RunFailed,
    operation,
)
from perdure.errors import (
    DuplicateOperation,
)
from perdure.journal import OperationKind, Outcome, Success
from perdure.testing.manual_clock import ManualClock
from tests.harness import (
    RUN,
    Pause,
    app_on,
    finish,
    interrupt,
    once,
    operations,
    run,
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
    declared = operation(name="flaky", read_only=True, retry=policy)(flaky)
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
