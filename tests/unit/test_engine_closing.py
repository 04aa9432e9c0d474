"""What closing an App leaves: operations that ended, and no end that is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunHandle, RunState, current, operation
from perdure.errors import EngineClosed
from tests.harness import RUN, Pause, app_on, run


async def _open_on_closing(handle: RunHandle[Any], go: asyncio.Event) -> None:
    """Let an operation end once its App has begun to close."""
    with pytest.raises(EngineClosed):
        await handle.result()
    go.set()


def _locking(app: App, calls: list[str], charge: asyncio.Event, how: str) -> Any:
    async def lock() -> None:
        calls.append("lock")

    @operation(read_only=True)
    async def pay() -> str:
        calls.append("pay")
        if calls.count("pay") == 1:
            charge.set()
            await asyncio.Event().wait()
        return "paid"

    async def unlock() -> None:
        calls.append("unlock")

    async def code(context: Context) -> str:
        await context.call(lock)
        try:
            return await context.call(pay)
        except asyncio.CancelledError:
            if how == "cancelled":
                await context.call(unlock)
            raise
        except BaseException:
            if how == "swallows":
                await context.call(unlock)
                return "gave up"
            raise
        finally:
            if how == "finally":
                await context.call(unlock)

    app.run(version=1, name="code")(code)
    return code


@pytest.mark.parametrize("how", ["finally", "cancelled", "swallows"])
def test_code_that_is_cut_short_by_closing_performs_nothing_more(tmp_path: Path, how: str) -> None:
    calls: list[str] = []

    async def main() -> Any:
        charging = asyncio.Event()
        first = app_on(tmp_path)
        code = _locking(first, calls, charging, how)
        async with first:
            await first.start(code, run_id=RUN)
            await charging.wait()
        assert calls == ["lock", "pay"]
        second = app_on(tmp_path)
        _locking(second, calls, charging, how)
        async with second:
            return await second.handle(RUN).result()

    assert run(main()) == "paid"
    assert calls == ["lock", "pay", "pay", *(["unlock"] if how == "finally" else [])]


def test_an_operation_under_way_ends_and_is_recorded_before_the_run_is_given_back(
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    async def main() -> tuple[RunState, Any]:
        paying, go = asyncio.Event(), asyncio.Event()

        async def pay() -> str:
            calls.append("pay")
            paying.set()
            await go.wait()
            return "paid"

        async def ship() -> str:
            calls.append("ship")
            return "shipped"

        async def code(context: Context) -> list[str]:
            return [await context.call(pay), await context.call(ship)]

        first = app_on(tmp_path, drain_seconds=60.0)
        first.run(version=1)(code)
        async with first:
            handle = await first.start(code, run_id=RUN)
            await paying.wait()
            opener = asyncio.create_task(_open_on_closing(handle, go))
        await opener
        assert calls == ["pay"]
        second = app_on(tmp_path)
        second.run(version=1)(code)
        async with second.connect():
            state = (await second.find(RUN)).state
        async with second:
            return state, await second.handle(RUN).result()

    assert run(main()) == (RunState.PENDING, ["paid", "shipped"])
    assert calls == ["pay", "ship"]


def test_what_an_operation_under_way_performs_below_itself_is_still_done(tmp_path: Path) -> None:
    calls: list[str] = []

    async def main() -> Any:
        reached, go = asyncio.Event(), asyncio.Event()

        async def inner() -> str:
            calls.append("inner")
            return "inner"

        async def code(context: Context) -> str:
            async def outer() -> str:
                calls.append("outer")
                reached.set()
                await go.wait()
                below = current()
                assert below is not None
                return await below.call(inner)

            return await context.call(outer)

        for _ in range(2):
            app = app_on(tmp_path, drain_seconds=60.0)
            app.run(version=1)(code)
            async with app:
                handle = await app.start(code, run_id=RUN)
                if go.is_set():
                    return await handle.result()
                await reached.wait()
                opener = asyncio.create_task(_open_on_closing(handle, go))
            await opener
        return None

    assert run(main()) == "inner"
    assert calls == ["outer", "inner"]


def test_run_sync_executes_no_runs_of_others(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def echo(context: Context, value: int) -> int:
        return value

    async def queue() -> None:
        async with app.connect():
            for number in range(3):
                await app.start(echo, number, run_id=f"other-{number}")

    run(queue())
    assert app.run_sync(echo, 7, run_id="mine") == 7

    async def states() -> list[RunState]:
        async with app.connect():
            return [row.state for row in await app.list()]

    assert run(states()) == [RunState.COMPLETED, *[RunState.PENDING] * 3]


def test_run_sync_goes_on_with_its_own_run_and_survives_an_interrupt_that_code_raises(
    tmp_path: Path,
) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        raise KeyboardInterrupt

    async def queue() -> None:
        async with app.connect():
            await app.start(work, run_id=RUN)

    run(queue())
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        app.run_sync(work, run_id=RUN)


def test_code_that_swallows_every_refusal_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    async def number(value: int) -> int:
        return value

    async def main() -> Any:
        pause = Pause()
        first = app_on(tmp_path)

        @first.run(version=1, name="stubborn")
        async def recorded(context: Context) -> None:
            await context.call(number, 1)
            await pause()

        async with first:
            await first.start("stubborn", run_id=RUN)
            await pause.reached.wait()
        second = app_on(tmp_path)

        @second.run(version=1, name="stubborn")
        async def stubborn(context: Context) -> str:
            for _ in range(20):
                try:
                    await context.call(number, 2)
                except BaseException:  # noqa: BLE001 - as some code does
                    continue
            return "gave up"

        @second.run(version=1)
        async def other(context: Context) -> int:
            return await context.call(number, 3)

        async with second:
            assert await (await second.start(other)).result() == 3
            assert (await second.find(RUN)).state in {RunState.PENDING, RunState.RUNNING}

    run(main())


def test_an_operation_that_exits_fails_and_ends_no_worker(
    tmp_path: Path,
) -> None:
    @operation(read_only=True)
    async def leave() -> None:
        raise SystemExit(3)

    async def main() -> list[str]:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def exits(context: Context) -> str:
            first, second = await asyncio.gather(
                context.call(leave), context.call(leave), return_exceptions=True
            )
            return f"{first} {second}"

        async with app:
            result = await (await app.start(exits)).result()
            return [part for part in result.split() if part == "SystemExit:"]

    assert run(main()) == ["SystemExit:", "SystemExit:"]


def test_an_app_is_used_in_the_loop_that_opened_it(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> int:
        return 1

    async def main() -> str:
        async with app:
            try:
                await asyncio.to_thread(lambda: asyncio.run(app.start(work)))
            except EngineClosed as error:
                return str(error)
        return ""

    assert "another event loop" in run(main())
