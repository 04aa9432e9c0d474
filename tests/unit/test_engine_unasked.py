"""Code that asks for less than it recorded, failures that tell where, mistakes of a first day."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    OperationFailed,
    OperationIdentity,
    RunFailed,
    RunNeedsAttention,
    current,
    effect,
    operation,
)
from perdure.effects.answer import Decision, Landed, Unknown
from perdure.errors import ForeignTask, InvalidFunction, InvalidPayload
from perdure.receipts import ReceiptStore
from tests.harness import RUN, Pause, app_on, run


async def _number(number: int) -> int:
    return number


def _interrupted(folder: Path, first: Any, second: Any) -> Any:
    """Execute `first` until it pauses, then `second` in its place, and return its result."""

    async def main() -> Any:
        pause = Pause()
        before = app_on(folder)

        async def paused(context: Context) -> Any:
            await first(context)
            await pause()

        before.run(version=1, name="work")(paused)
        async with before:
            await before.start("work", run_id=RUN)
            await pause.reached.wait()
        after = app_on(folder)
        after.run(version=1, name="work")(second)
        async with after:
            return await after.handle(RUN).result()

    return run(main())


def test_a_run_that_ends_without_asking_for_what_it_recorded_needs_attention(
    tmp_path: Path,
) -> None:
    async def two(context: Context) -> None:
        await context.call(_number, 1)
        await context.branch("side").call(_number, 2)

    async def one(context: Context) -> int:
        return await context.call(_number, 1)

    with pytest.raises(RunNeedsAttention, match=f"{RUN}/branch.side.1.call/1") as raised:
        _interrupted(tmp_path, two, one)
    assert raised.value.code == "UnaskedOperation"


@pytest.mark.parametrize(
    ("support", "asks", "settled"),
    [
        ("at_least_once", False, False),
        ("outcome_queryable", False, False),
        ("at_least_once", False, True),
        ("at_least_once", True, False),
        ("idempotent", False, False),
    ],
)
def test_a_run_that_ends_without_asking_for_what_it_began_needs_attention(
    tmp_path: Path, support: str, *, asks: bool, settled: bool
) -> None:
    """Unless that is known by now, or its target drops a repeat, as it does with an event."""
    begun = asyncio.Event()

    @effect(support=support, name="pay", on_ambiguous="tell")
    async def pay() -> None:
        begun.set()
        await asyncio.Event().wait()

    if support == "outcome_queryable":

        @pay.lookup
        async def find(operation: OperationIdentity) -> Unknown:
            return Unknown()

    async def before(context: Context) -> int:
        return await context.branch("side").call(pay)

    async def after(context: Context) -> str:
        if asks:
            with suppress(OperationFailed):
                await context.branch("side").call(pay)
        return "done"

    async def main() -> Any:
        first, second = app_on(tmp_path), app_on(tmp_path)
        first.run(version=1, name="work")(before)
        second.run(version=1, name="work")(after)
        async with first:
            await first.start("work", run_id=RUN)
            await begun.wait()
        if settled:
            await _settle(first, Landed("paid"))
        async with second:
            return await second.handle(RUN).result()

    if asks or settled or support == "idempotent":
        assert run(main()) == "done"
        return
    with pytest.raises(RunNeedsAttention, match=f"{RUN}/branch.side.1.call/1") as raised:
        run(main())
    assert raised.value.code == "UnaskedOperation"


async def _settle(app: App, decision: Decision) -> None:
    async with ReceiptStore(app.url) as store:
        (receipt,) = await store.list(ambiguous_only=True)
        key, version = receipt.operation_key, receipt.version
        await store.settle(key, decision, by="ada", why="saw it", expect_version=version)


def test_what_was_performed_below_a_recorded_operation_is_not_asked_for(tmp_path: Path) -> None:
    async def outer() -> int:
        context = current()
        assert context is not None
        return await context.call(_number, 3)

    async def code(context: Context) -> int:
        return await context.call(outer)

    assert _interrupted(tmp_path, code, code) == 3


def test_a_timeout_of_an_operation_is_recorded(tmp_path: Path) -> None:
    calls: list[str] = []

    @operation(read_only=True, timeout_seconds=0.0)
    async def slow() -> str:
        calls.append("slow")
        await asyncio.Event().wait()
        return "late"

    async def code(context: Context) -> str:
        try:
            return await context.call(slow)
        except OperationFailed as failure:
            return f"{failure.code}, {await context.call(_number, 5)}"

    assert _interrupted(tmp_path, code, code) == "TimeoutError, 5"
    assert calls == ["slow"]


def test_a_failure_tells_where_and_the_run_goes_on_once_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    broken = True

    async def note(number: int) -> int:
        calls.append(number)
        return number

    async def main() -> Any:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> int:
            number = await context.call(note, 7)
            return number // (0 if broken else 1)

        nonlocal broken
        async with app:
            handle = await app.start(work, run_id=RUN)
            with pytest.raises(RunFailed) as raised:
                await handle.result()
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            assert "in work" in raised.value.traceback
            broken = False
            assert (await app.resume(RUN)).problem is None
            return await handle.result()

    with caplog.at_level(logging.INFO, "perdure"):
        assert run(main()) == 7
    assert calls == [7]
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in told] == [True]
    assert f"run {RUN}: completed" in caplog.messages


def test_ids_and_numbers_belong_to_the_task_that_owns_the_context(tmp_path: Path) -> None:
    async def main() -> Any:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            context.uuid()

            async def other(use: Any) -> str:
                with pytest.raises(ForeignTask):
                    use()
                return "refused"

            return await asyncio.gather(other(context.uuid), other(context.random))

        async with app:
            return await (await app.start(work)).result()

    assert run(main()) == ["refused", "refused"]


def test_mistakes_of_a_first_day_say_what_to_write(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    with pytest.raises(InvalidFunction, match=r"@app\.run\(version=1\)"):
        app.run(_number)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidFunction, match="needs an async function"):
        operation(timeout_seconds=1)(int)

    @operation
    def plain() -> int:
        return 1

    @app.run(version=1)
    async def work(context: Context) -> int:
        pending = _number(1)
        with pytest.raises(InvalidFunction, match="pass the function and its arguments"):
            context.call(pending)  # pyright: ignore[reportCallIssue, reportArgumentType]
        pending.close()
        for seconds in (-1, float("nan"), float("inf"), "3"):
            with pytest.raises(InvalidPayload, match="finite number of seconds"):
                context.sleep(seconds)  # pyright: ignore[reportArgumentType]
        return await context.call(plain)

    @app.run(version=1)
    async def needs(context: Context, value: int) -> int:
        return value

    @app.run(version=1)
    async def optional(context: Context, value: int = 3) -> int:
        return value

    async def main() -> int:
        async with app:
            with pytest.raises(InvalidPayload, match="takes an input"):
                await app.start("needs")
            assert await (await app.start(optional)).result() == 3
            assert await (await app.start(optional, 4)).result() == 4
            with pytest.raises(InvalidPayload, match="and no input"):
                await app.start("work", 1)
            return await (await app.start(work)).result()

    assert run(main()) == 1
