"""Waits that the code of a run gives up: no later execution ends them instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, operation
from perdure.approvals import Approve
from perdure.errors import ApprovalClosed
from tests.harness import RUN, run
from tests.waiting import put_away, waiting_app

pytestmark = pytest.mark.usefixtures("storage")

Race = Callable[[Context], Awaitable[Any]]


@operation(read_only=True)
async def quick() -> str:
    return "quick"


async def first_of(*work: Awaitable[Any]) -> list[Any]:
    """Return what has come first, and give up the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return [task.result() for task in tasks if task in done]


async def message(context: Context) -> Any:
    return await context.wait_for("a")


async def answer(context: Context) -> Any:
    return await context.approval("refund", {})


async def nap(context: Context) -> str:
    await context.sleep(3600)
    return "slept"


@pytest.mark.parametrize("loser", [message, answer, nap], ids=["message", "answer", "nap"])
def test_what_was_given_up_is_given_up_on_every_replay(tmp_path: Path, loser: Race) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            lost, won = context.branch("lost"), context.branch("won")
            first = await first_of(loser(lost), won.call(quick))
            note = await context.call(quick)
            return [*first, note, await context.wait_for("go")]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "a", "too late")
            if loser is answer:
                with pytest.raises(ApprovalClosed):
                    await app.resolve(RUN, "branch.lost.1.approval.1", Approve(), by="ann")
            await app.send(RUN, "go", "on")
            result = await handle.result()
            assert (await app.rehearse(RUN)).verdict == "matches"
            return result

    assert run(scenario()) == ["quick", "quick", "on"]


def test_the_message_of_a_wait_that_was_given_up_is_there_for_another_one(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            lost, won = context.branch("lost"), context.branch("won")
            await first_of(message(lost), won.call(quick))
            return await context.wait_for("a")

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "a", "here")
            result = await handle.result()
            (taken,) = await app.messages(RUN)
            return result, taken.taken_by

    assert run(scenario()) == ("here", ("wait", 1))


def test_a_wait_that_has_won_stays_so(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            first = await first_of(message(context.branch("won")), nap(context.branch("lost")))
            return [*first, await context.wait_for("go")]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "a", "news")
            while not (await app.messages(RUN))[0].taken_at:
                await asyncio.sleep(0)
            await put_away(app)
            await app.send(RUN, "go", "on")
            return await handle.result()

    assert run(scenario()) == ["news", "on"]


def test_a_run_that_is_cut_short_has_given_nothing_up(tmp_path: Path) -> None:
    async def scenario() -> Any:
        for _ in range(2):
            app = waiting_app(tmp_path, linger_seconds=3600.0)

            @app.run(version=1, name="work")
            async def work(context: Context) -> Any:
                async with asyncio.TaskGroup() as group:
                    branches = [context.branch(name) for name in ("b", "c")]
                    tasks = [group.create_task(message(branch)) for branch in branches]
                return sorted(task.result() for task in tasks)

            async with app:
                await app.start("work", run_id=RUN)
                while len((await app.store.read_journal(RUN)).timers) < 2:
                    await asyncio.sleep(0)
        async with app:
            for word in ("x", "y"):
                await app.send(RUN, "a", word)
            return await app.handle(RUN).result()

    assert run(scenario()) == ["x", "y"]


def test_a_message_that_is_taken_while_its_wait_is_cancelled_is_not_lost(tmp_path: Path) -> None:
    async def scenario() -> list[Any]:
        app = waiting_app(tmp_path, linger_seconds=3600.0)
        sent = asyncio.Event()

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            heard: list[Any] = []
            while len(heard) < 20:
                waiting = asyncio.create_task(message(context.branch("each")))
                await sent.wait()
                sent.clear()
                for _ in range(len(heard) % 5):
                    await asyncio.sleep(0)
                waiting.cancel()
                heard += await asyncio.gather(waiting, return_exceptions=True)
            return [each for each in heard if not isinstance(each, BaseException)]

        async with app:
            handle = await app.start(work, run_id=RUN)
            for number in range(20):
                await app.send(RUN, "a", number)
                sent.set()
                while sent.is_set():
                    await asyncio.sleep(0)
            heard = await handle.result()
            left = [each.payload_json for each in await app.messages(RUN) if not each.taken_at]
            return heard + [int(each or b"") for each in left]

    assert run(scenario()) == [*range(20)]
