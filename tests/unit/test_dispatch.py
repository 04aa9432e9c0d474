"""Runs that a dispatcher has executed: what it is told, when, and what it hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunCancelled, RunFailed, RunState
from perdure.approvals import Approve
from perdure.engine.dispatch import Driver
from perdure.engine.driving import FINISH_SECONDS, LOOK_SECONDS
from perdure.errors import UnknownRun
from perdure.testing.manual_clock import ManualClock
from perdure.turn import Turn
from tests.dispatching import Switchboard, ends_of
from tests.harness import RUN, Pause, app_on, paused_app, run
from tests.turning import ROOM, begun

pytestmark = pytest.mark.usefixtures("storage")


def dispatched(
    folder: Path, board: Switchboard, serve: Callable[[App], Any] | None = None, **options: Any
) -> App:
    app = app_on(folder, **{"linger_seconds": 0.0, **options})
    board.dispatch(app)

    @app.run(version=1)
    async def echo(context: Context, value: Any = None) -> Any:
        return value

    @app.run(version=1)
    async def listen(context: Context) -> Any:
        return await context.wait_for("news")

    if serve is not None:
        serve(app)
    return app


def with_child(app: App) -> None:
    @app.run(version=1)
    async def above(context: Context) -> Any:
        return await (await context.start_child("listen")).result()


async def stands(app: App, state: RunState, run_id: str = RUN) -> None:
    while (await app.find(run_id)).state is not state:
        await asyncio.sleep(0)


def driver_of(board: Switchboard) -> Driver:
    return board.drivers[-1]


def test_a_run_is_executed_when_the_dispatcher_asks_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board) as app:
            assert board.served == {("echo", 1), ("listen", 1)}
            assert await (await app.start("echo", 7, run_id=RUN)).result() == 7
            # Once more, since whoever starts it again may be the one who remembers it.
            await app.start("echo", 7, run_id=RUN)
        assert board.told == [("wake", RUN)]
        assert ends_of(board.drives, RUN) == [RunState.COMPLETED]

    run(main())


def test_a_worker_looks_for_no_run_by_itself_but_tells_of_those_that_wait(tmp_path: Path) -> None:
    """Whoever wrote it may have died before it could tell, or knows no dispatcher."""
    clock = ManualClock()

    async def main() -> None:
        board = Switchboard()
        board.deaf = True
        async with dispatched(tmp_path, board, clock=clock) as app:
            handle = await app.start("echo", 7, run_id=RUN)
            for _ in range(20):
                await asyncio.sleep(0.002)
                clock.advance(LOOK_SECONDS / 10)
            assert await handle.status() is RunState.PENDING
            board.deaf = False
            result = asyncio.create_task(handle.result())
            while not result.done():
                clock.advance(LOOK_SECONDS)
                await asyncio.sleep(0.002)
            assert await result == 7
        assert board.told[0] == ("ensure", RUN)

    run(main())


def test_a_run_that_is_told_of_is_told_again_after_a_while_only(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        board = Switchboard()
        board.deaf = True
        async with dispatched(tmp_path, board, clock=clock).connect() as outsider:
            await outsider.start("echo", 7, run_id=RUN)
        board.deaf = False
        async with dispatched(tmp_path, board, clock=clock) as app:
            board.drivers.clear()  # nobody does what is told
            for _ in range(100):
                clock.advance(LOOK_SECONDS / 4)
                await asyncio.sleep(0.002)
            assert await app.handle(RUN).status() is RunState.PENDING
        assert board.told == [("ensure", RUN)]

    run(main())


def test_what_a_run_waits_for_wakes_it(tmp_path: Path) -> None:
    def serve(app: App) -> None:
        @app.run(version=1)
        async def ask(context: Context) -> str:
            answer = await context.approval("pay", {"cents": 5})
            return type(answer).__name__

        @app.run(version=1)
        async def fail(context: Context) -> str:
            raise ValueError

    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, serve) as app:
            listening = await app.start("listen", run_id=RUN)
            await stands(app, RunState.SUSPENDED)
            await app.send(RUN, "other", 1)
            await app.send(RUN, "news", 2)
            assert await listening.result() == 2
            asking = await app.start("ask", run_id="asks")
            await stands(app, RunState.SUSPENDED, "asks")
            await app.resolve("asks", "approval.1", Approve(), by="ada")
            assert await asking.result() == "Approve"
            with pytest.raises(RunFailed):
                await (await app.start("fail", run_id="fails")).result()
            await app.resume("fails")
            with pytest.raises(RunFailed):
                await app.handle("fails").result()
        assert board.told == [
            ("wake", name) for name in (RUN, RUN, "asks", "asks", "fails", "fails")
        ]

    run(main())


def test_a_sleeping_run_says_how_long_it_is_until_it_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()

    def serve(app: App) -> None:
        @app.run(version=1)
        async def sleep(context: Context) -> str:
            await context.sleep(3600)
            return "woken"

    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, serve, clock=clock, sweep_seconds=1e9) as app:
            handle = await app.start("sleep", run_id=RUN)
            await stands(app, RunState.SLEEPING)
            await board.land()
            (_, rested) = board.drives[-1]
            assert rested is not None
            assert rested.state is RunState.SLEEPING
            assert rested.seconds == pytest.approx(3600)
            clock.advance(1800)
            rested = await driver_of(board).drive(RUN)
            assert rested is not None
            assert rested.seconds == pytest.approx(1800)
            clock.advance(1800)
            board.drive(RUN)  # its time is over, whoever has swept
            assert await handle.result() == "woken"

    run(main())


def test_cancelling_tells_of_a_run_and_of_all_below_it(tmp_path: Path) -> None:
    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, with_child) as app:
            handle = await app.start("above", run_id=RUN)
            await stands(app, RunState.SUSPENDED)
            child = f"{RUN}.child.1"
            await stands(app, RunState.SUSPENDED, child)
            await app.cancel(RUN)
            with pytest.raises(RunCancelled):
                await handle.result()
            assert sorted(each for each in board.told if each[0] == "cancel") == [
                ("cancel", RUN),
                ("cancel", child),
            ]
            rested = await driver_of(board).drive(child)
            assert rested is not None
            assert rested.state is RunState.CANCELLED

    run(main())


def test_the_end_of_a_child_wakes_the_run_above_it(tmp_path: Path) -> None:
    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, with_child) as app:
            handle = await app.start("above", run_id=RUN)
            await stands(app, RunState.SUSPENDED)
            child = f"{RUN}.child.1"
            await stands(app, RunState.SUSPENDED, child)
            await app.send(child, "news", 3)
            assert await handle.result() == 3
        assert board.told == [("wake", name) for name in (RUN, child, child, RUN)]

    run(main())


def test_a_dispatcher_hears_of_what_ended_without_its_hearing(tmp_path: Path) -> None:
    """A program that knows no dispatcher has cancelled it, or a collection has deleted it."""
    clock = ManualClock()

    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, clock=clock) as app:
            for name in (RUN, "waits"):
                await app.start("listen", run_id=name)
                await stands(app, RunState.SUSPENDED, name)
            async with app_on(tmp_path, clock=clock).connect() as outsider:
                await outsider.cancel(RUN)
            board.unfinished = [RUN, "waits", "gone"]
            board.told.clear()
            while len(board.told) < 3:
                clock.advance(FINISH_SECONDS / 4)
                await asyncio.sleep(0.002)
        assert sorted(board.told) == [("cancel", RUN), ("finish", "gone"), ("finish", RUN)]

    run(main())


def test_who_asks_for_a_run_that_is_executed_waits_for_that(tmp_path: Path) -> None:
    async def main() -> None:
        board, pause, seen = Switchboard(), Pause(), list[str]()
        app = paused_app(tmp_path, pause, seen)
        board.dispatch(app)
        async with app:
            handle = await app.start("work", 7, run_id=RUN)
            await pause.reached.wait()
            again = [asyncio.create_task(driver_of(board).drive(RUN)) for _ in range(3)]
            given_up = asyncio.create_task(driver_of(board).drive(RUN))
            await asyncio.sleep(0)
            given_up.cancel()
            elsewhere = Switchboard()
            other = paused_app(tmp_path, pause)
            elsewhere.dispatch(other)
            async with other:
                # Another worker has it, and is alive.
                assert await driver_of(elsewhere).drive(RUN) is None
            work = app.engine._worker
            assert work is not None
            await work.close()
            assert [await each for each in again] == [None, None, None]
            assert await handle.status() is RunState.PENDING
            assert seen == [RUN]

    run(main())


def test_a_run_that_is_not_there_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board):
            with pytest.raises(UnknownRun):
                await driver_of(board).drive("nobody")

    run(main())


def test_a_permit_for_a_queue_goes_to_its_first_run(tmp_path: Path) -> None:
    began: list[int] = []

    def serve(app: App) -> None:
        app.queue("narrow", concurrency=1)

        @app.run(version=1)
        async def note(context: Context, number: int) -> None:
            began.append(number)

    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, serve) as app:
            board.deaf = True
            for number in range(4):
                name = f"n{number}"
                await app.start("note", number, run_id=name, queue="narrow", priority=number)
            rested = await driver_of(board).drive("n0")
            assert rested is not None
            assert rested.state is RunState.COMPLETED
        assert began == [3, 2, 1, 0]

    run(main())


def test_a_turn_is_told_of_with_its_session(tmp_path: Path) -> None:
    def serve(app: App) -> None:
        @app.turn(version=1)
        async def answer(context: Context, turn: Turn) -> str:
            return await turn.text()

    async def main() -> None:
        board = Switchboard()
        async with dispatched(tmp_path, board, serve) as app:
            handle = await begun(app, "hello", function="answer")
            assert await handle.result() == "hello"
            assert board.sessions == {handle.run_id: ROOM}
            board.deaf, board.sessions = True, {}
            handle = await begun(app, "once more", function="answer")
            board.deaf = False
            assert await handle.result() == "once more"
            assert board.sessions == {handle.run_id: ROOM}

    run(main())


def test_a_program_that_waits_for_one_run_executes_no_other(tmp_path: Path) -> None:
    board = Switchboard()

    async def left() -> None:
        async with dispatched(tmp_path, board).connect() as app:
            await app.start("echo", 1, run_id="left")

    run(left())
    app = dispatched(tmp_path, board)
    board.told.clear()
    assert app.run_sync("echo", 7, run_id=RUN) == 7

    async def main() -> None:
        async with app.connect():
            assert await app.handle("left").status() is RunState.PENDING
        only = dispatched(tmp_path, board)
        await only._open(work=True, only_started=True)
        try:
            assert await driver_of(board).drive("left") is None
        finally:
            await only._close()

    run(main())
