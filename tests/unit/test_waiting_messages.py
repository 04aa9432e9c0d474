"""Messages that reach runs: before their waiters, in order, once, and for as long as they wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunState
from perdure.errors import (
    InvalidPayload,
    MessageConflict,
    MessageTaken,
    WaitTimedOut,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, attempts, finish, run
from tests.waiting import later, listening, put_away, stands, ticks, waiting_app

pytestmark = pytest.mark.usefixtures("storage")


@dataclass(frozen=True)
class Refund:
    order: str
    amount: Decimal


def test_messages_before_their_waiter_are_taken_in_the_order_of_their_name(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, list[Any]]:
        app = listening(tmp_path, "a", "a", "b")
        async with app.connect():
            await app.start("listen", run_id=RUN)
            for name, value in (("b", 1), ("a", 2), ("c", 3), ("a", 4)):
                await app.send(RUN, name, value, id=f"{name}-{value}", by="ada")
        result = await finish(app)
        async with app.connect():
            messages = await app.messages(RUN)
        return result, [(each.message_id, each.taken_by, each.sent_by) for each in messages]

    assert run(scenario()) == (
        [2, 4, 1],
        [
            ("b-1", ("wait", 3), "ada"),
            ("a-2", ("wait", 1), "ada"),
            ("c-3", None, "ada"),
            ("a-4", ("wait", 2), "ada"),
        ],
    )


def test_a_message_is_there_once_by_its_id(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, int]:
        app = listening(tmp_path, "a", "a")
        async with app:
            await app.start("listen", run_id=RUN)
            first = await app.send(RUN, "a", {"n": 1}, id="1")
            assert await app.send(RUN, "a", {"n": 1}, id="1") == first
            for name, payload in (("a", {"n": 2}), ("b", {"n": 1})):
                with pytest.raises(MessageConflict, match="'1'"):
                    await app.send(RUN, name, payload, id="1")
            while not (await app.messages(RUN))[0].taken_by:
                await asyncio.sleep(0)
            again = await app.send(RUN, "a", {"n": 1}, id="1")
            assert again.taken_by == ("wait", 1)
            await put_away(app)
            one, other = await app.send(RUN, "b"), await app.send(RUN, "b")
            assert one.message_id != other.message_id
            await app.send(RUN, "a", None)
            return await app.handle(RUN).result(), len(await app.messages(RUN))

    assert run(scenario()) == ([{"n": 1}, None], 4)


def test_a_message_that_nobody_took_is_edited_and_withdrawn(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = listening(tmp_path, "a", "a")
        async with app.connect():
            await app.start("listen", run_id=RUN)
            for number in (1, 2, 3):
                await app.send(RUN, "a", number, id=str(number))
            edited = await app.edit(RUN, "1", "new", by="bob")
            assert (edited.edition, edited.sent_by, edited.taken_by) == (2, "bob", None)
            assert (await app.edit(RUN, "1", "new")).edition == 2
            assert await app.withdraw(RUN, "2")
            assert not await app.withdraw(RUN, "2")
            with pytest.raises(MessageConflict, match="no message"):
                await app.edit(RUN, "2", 0)
        result = await finish(app)
        async with app.connect():
            with pytest.raises(MessageTaken):
                await app.withdraw(RUN, "1")
            with pytest.raises(MessageTaken):
                await app.edit(RUN, "3", 0)
        return result

    assert run(scenario()) == ["new", 3]


def test_a_message_that_is_edited_while_it_is_taken_is_taken_as_it_then_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> Any:
        app = listening(tmp_path, "a")
        async with app:
            take = app.store.take_message

            async def late(*args: Any) -> bool:
                monkeypatch.setattr(app.store, "take_message", take)
                await app.edit(RUN, "1", "new")
                return await take(*args)

            monkeypatch.setattr(app.store, "take_message", late)
            handle = await app.start("listen", run_id=RUN)
            await app.send(RUN, "a", "old", id="1")
            return await handle.result()

    assert run(scenario()) == ["new"]


def test_a_message_wakes_a_run_whose_worker_is_another_app(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app, sender = listening(tmp_path, "a"), app_on(tmp_path)
        async with app, sender.connect():
            handle = await app.start("listen", run_id=RUN)
            await put_away(app)
            await sender.send(RUN, "a", b"bytes")
            return await handle.result()

    assert run(scenario()) == [b"bytes"]


def test_a_message_reaches_a_run_in_memory_from_another_app(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, int]:
        app, sender = listening(tmp_path, "a", linger_seconds=3600.0), app_on(tmp_path)
        async with app, sender.connect():
            handle = await app.start("listen", run_id=RUN)
            await ticks(app)
            await sender.send(RUN, "a", 1)
            return await handle.result(), len(await app.store.list_attempts(RUN))

    assert run(scenario()) == ([1], 1)


def test_a_wait_times_out_now_and_on_every_replay(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Any], float | None]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            said: list[str] = []
            for _ in range(2):
                try:
                    said.append(await context.wait_for("news", timeout_seconds=60))
                except WaitTimedOut as late:
                    said.append(f"{late.name}: {late}")
            return [*said, await context.wait_for("end")]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            wake_at = (await app.engine.find(RUN)).wake_at
            await later(app, clock, 61)
            await put_away(app)
            # The second one is in time, and the first is over whatever comes.
            await app.send(RUN, "news", "in time")
            while not (await app.messages(RUN))[0].taken_by:
                await asyncio.sleep(0)
            await put_away(app)
            await app.send(RUN, "end", "end")
            start = clock.now() - 61
            return await handle.result(), None if wake_at is None else wake_at - start

    why = "news: no message 'news' came within 60 seconds"
    assert run(scenario()) == ([why, "in time", "end"], 60.0)


@pytest.mark.parametrize("first", ["message", "time"])
def test_a_message_and_the_end_of_its_time_have_one_winner(tmp_path: Path, first: str) -> None:
    """What a run finds when it looks decides; what comes later waits for the next wait."""

    async def scenario() -> list[Any]:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            try:
                return [await context.wait_for("news", timeout_seconds=60)]
            except TimeoutError:
                return ["late", await context.wait_for("news")]

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            if first == "message":
                # The time is over, and nobody has looked yet.
                clock._now += 61
                await app.send(RUN, "news", "said")
            else:
                await later(app, clock, 61)
                while not await app.store.list_operations(RUN):
                    await asyncio.sleep(0)
                await app.send(RUN, "news", "said")
            return await handle.result()

    assert run(scenario()) == {"message": ["said"], "time": ["late", "said"]}[first]


def test_a_timeout_of_nothing_looks_once(tmp_path: Path) -> None:
    async def scenario() -> list[Any]:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            await context.wait_for("go")
            said = [await context.wait_for("news", timeout_seconds=0)]
            with pytest.raises(WaitTimedOut):
                await context.wait_for("news", timeout_seconds=0)
            return said

        async with app:
            handle = await app.start(work, run_id=RUN)
            await app.send(RUN, "news", "there")
            await app.send(RUN, "go")
            return await handle.result()

    assert run(scenario()) == ["there"]


def test_a_run_that_needs_attention_takes_messages_for_later(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        values = ["a", "b"]

        async def echo(value: str) -> str:
            return value

        @app.run(version=1)
        async def work(context: Context) -> Any:
            await context.call(echo, values.pop(0))
            await context.wait_for("go")
            return await context.wait_for("news")

        async with app:
            handle = await app.start(work, run_id=RUN)
            await put_away(app)
            await app.send(RUN, "go")
            await stands(app, RunState.NEEDS_ATTENTION)
            await app.send(RUN, "news", "kept")
            values.append("a")
            await app.engine.resume(RUN)
            return await handle.result()

    assert run(scenario()) == "kept"


def test_a_message_says_what_an_operation_may_take(tmp_path: Path) -> None:
    said = [
        Refund("7", Decimal("19.90")),
        {1: (2, b"3"), "at": datetime(2026, 1, 2, tzinfo=UTC)},
        float("inf"),
        "\ud800\x00",
        None,
    ]

    async def scenario() -> Any:
        app = listening(tmp_path, *["a"] * len(said), types=[Refund])
        stranger = listening(tmp_path)
        async with app:
            handle = await app.start("listen", run_id=RUN)
            for value in said:
                await app.send(RUN, "a", value)
            with pytest.raises(InvalidPayload):
                await app.send(RUN, "a", object())
            with pytest.raises(InvalidPayload, match="message a"):
                await app.send(RUN, "a", "x" * 3_000_000)
            async with stranger.connect():
                with pytest.raises(InvalidPayload, match="Refund"):
                    await stranger.send(RUN, "a", said[0])
            return await handle.result()

    assert run(scenario()) == said


def test_a_message_whose_class_nobody_knows_here_is_kept_for_who_does(tmp_path: Path) -> None:
    async def scenario() -> Any:
        ignorant, knowing = listening(tmp_path, "a"), listening(tmp_path, "a", types=[Refund])
        async with ignorant, knowing.connect():
            await ignorant.start("listen", run_id=RUN)
            await put_away(ignorant)
            await knowing.send(RUN, "a", Refund("7", Decimal(1)))
            await stands(ignorant, RunState.NEEDS_ATTENTION)
        async with knowing:
            await knowing.resume(RUN)
            return await knowing.handle(RUN).result()

    assert run(scenario()) == [Refund("7", Decimal(1))]
    assert [each.ending for each in run(attempts(app_on(tmp_path)))] == [
        "suspended",
        "needs_attention",
        "completed",
    ]


def test_what_has_come_is_taken_without_waiting(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, list[Any]]:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> list[Any]:
            told = [await context.take("news")]
            for _ in range(2):
                await context.wait_for("go")
                told.append(await context.take("news"))
            return told

        async with app:
            handle = await app.start(work, run_id=RUN)
            for values in ((1, 2), (3,)):
                await put_away(app)
                for value in values:
                    await app.send(RUN, "news", value)
                await app.send(RUN, "go")
                while not (await app.messages(RUN))[-1].taken_by:
                    await asyncio.sleep(0)
            result = await handle.result()
            return result, [each.taken_by for each in await app.messages(RUN)]

    result, taken_by = run(scenario())
    assert result == [[], [1, 2], [3]]
    assert taken_by[:2] == [("take", 2), ("take", 3)]
