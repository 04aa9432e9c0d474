"""Queues: what bounds how many runs are executed at once and how many begin."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationFailed, RunState
from perdure.engine.queues import QueueLimits
from perdure.errors import InvalidOptions, RunCancelled, UnknownQueue
from perdure.queued import Queued
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Pause, app_on, paused_app, run, until
from tests.waiting import later, put_away, stands, ticks, waiting_app

pytestmark = pytest.mark.usefixtures("storage")


class Gate:
    """Runs that stay until they are let go, and which of them are inside."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.entered: list[Any] = []
        self.most: Counter[str] = Counter()
        self.open = asyncio.Event()

    async def work(self, context: Context, value: Any = None) -> Any:
        self.inside.append(value)
        self.entered.append(value)
        key = str(value)[:1]
        now = [each for each in self.inside if str(each)[:1] == key]
        self.most[key] = max(self.most[key], len(now))
        self.most["all"] = max(self.most["all"], len(self.inside))
        try:
            await self.open.wait()
            await asyncio.sleep(0.001)
        finally:
            self.inside.remove(value)
        return value

    def app(self, folder: Path, *, clock: ManualClock | None = None, **limits: Any) -> App:
        """Return an App with the queue `mail`, whose limits are given."""
        app = app_on(folder, clock=clock)
        app.run(version=1, name="work")(self.work)
        app.queue("mail", **limits)
        return app


async def entered(gate: Gate, app: App, count: int) -> list[Any]:
    """Return what has begun once it is so much, and the worker has looked for more."""
    await until(lambda: len(gate.entered) >= count)
    await ticks(app)
    return gate.entered


def test_two_workers_never_exceed_the_limits_together(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        one, other = (gate.app(tmp_path, concurrency=4, key_concurrency=2) for _ in range(2))
        async with one, other:
            handles = [
                await app.start("work", f"{key}{number}", queue="mail", key=key)
                for number in range(8)
                for key, app in (("a", one), ("b", other), ("c", one))
            ]
            await entered(gate, one, 4)
            await ticks(other)
            counts = [(row.pending, row.running) for row in await one.queues()]
            assert (len(gate.inside), counts) == (4, [(20, 4)])
            gate.open.set()
            results = await asyncio.gather(*(handle.result() for handle in handles))
            assert sorted(results) == sorted(gate.entered)
        assert gate.most == {"a": 2, "b": 2, "c": 2, "all": 4}

    run(whole())


def test_a_full_queue_keeps_no_other_run_waiting(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        app = gate.app(tmp_path, concurrency=1)
        app.queue("free")
        async with app:
            for number in range(3):
                await app.start("work", f"m{number}", queue="mail", priority=9)
            assert await entered(gate, app, 1) == ["m0"]
            await app.start("work", "plain")
            assert gate.inside == ["m0"], "it is executed here at once, in the loop's next turn"
            assert [row.holder is None for row in await app.list()] == [False, True, True, False]
            await app.start("work", "queued", queue="free")
            assert await entered(gate, app, 3) == ["m0", "plain", "queued"]
            gate.open.set()

    run(whole())


def test_runs_begin_as_their_rate_lets_them_and_nobody_has_to_write(tmp_path: Path) -> None:
    async def whole() -> None:
        gate, clock = Gate(), ManualClock()
        gate.open.set()
        app = gate.app(tmp_path, clock=clock, rate=(2, 60.0))
        async with app:
            handles = [await app.start("work", number, queue="mail") for number in range(5)]
            assert await entered(gate, app, 2) == [0, 1]
            await asyncio.gather(*(handle.result() for handle in handles[:2]))
            await later(app, clock, 59.0)
            assert gate.entered == [0, 1]
            clock.advance(2.0)
            assert await entered(gate, app, 4) == [0, 1, 2, 3]
            clock.advance(61.0)
            assert await handles[4].result() == 4

    run(whole())


def test_a_run_that_waits_gives_up_its_place_and_does_not_begin_twice(tmp_path: Path) -> None:
    async def whole() -> None:
        clock = ManualClock()
        app = waiting_app(tmp_path, clock=clock)
        seen: list[str] = []

        @app.run(version=1)
        async def naps(context: Context, seconds: float) -> None:
            seen.append(context.run_id)
            if seconds:
                await context.sleep(seconds)

        app.queue("mail", concurrency=1, rate=(2, 3600.0))
        async with app:
            first = await app.start(naps, 100.0, run_id=RUN, queue="mail")
            assert await put_away(app) is RunState.SLEEPING
            second = await app.start(naps, 0.0, run_id="second", queue="mail")
            await second.result()
            third = await app.start(naps, 0.0, run_id="third", queue="mail")
            await later(app, clock, 101.0)
            await first.result()
            await ticks(app)
            assert await third.status() is RunState.PENDING
            assert seen == [RUN, "second", RUN]

    run(whole())


def test_what_is_more_urgent_goes_first(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        gate.open.set()
        app = gate.app(tmp_path, concurrency=1)
        async with app.connect():
            for value in (0, 5, -3, 5, 1):
                await app.start("work", value, queue="mail", priority=value)
        async with app:
            assert await entered(gate, app, 5) == [5, 5, 1, 0, -3]

    run(whole())


def test_a_paused_queue_lets_nothing_through_until_it_is_resumed(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        gate.open.set()
        async with gate.app(tmp_path) as app:
            await app.pause_queue("mail")
            handle = await app.start("work", 1, queue="mail")
            await ticks(app)
        async with gate.app(tmp_path, concurrency=7) as app:
            await ticks(app)
            (row,) = await app.queues()
            told = (row.name, row.limits, row.paused, row.pending, row.running)
            assert told == ("mail", QueueLimits(concurrency=7), True, 1, 0)
            assert gate.entered == []
            await app.resume_queue("mail")
            assert await app.handle(handle.run_id).result() == 1
            for change in (app.pause_queue, app.resume_queue):
                with pytest.raises(UnknownQueue, match="no queue 'male' in this store: declare it"):
                    await change("male")

    run(whole())


def test_a_run_is_cancelled_in_its_queue(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        async with gate.app(tmp_path, concurrency=1) as app:
            first, second, third = [
                await app.start("work", number, queue="mail") for number in range(3)
            ]
            await entered(gate, app, 1)
            assert await second.cancel() is RunState.CANCELLED
            await first.cancel()
            with pytest.raises(RunCancelled):
                await first.result()
            gate.open.set()
            assert await third.result() == 2
            assert gate.entered == [0, 2]

    run(whole())


def test_a_run_whose_worker_stops_goes_through_its_queue_again(tmp_path: Path) -> None:
    pause = Pause()
    app = paused_app(tmp_path, pause)
    app.queue("mail", concurrency=1, rate=(1, 3600.0))

    async def whole() -> None:
        async with app:
            await app.start("work", 7, run_id=RUN, queue="mail", key="a", priority=3)
            await app.start("work", 8, run_id="second", queue="mail")
            await pause.reached.wait()
        pause.open = True
        async with app:
            assert await app.handle(RUN).result() == 7
            await ticks(app)
            row = await app.find(RUN)
            assert (row.queued, row.generation) == (Queued("mail", "a", 3), 2)
            assert await app.handle("second").status() is RunState.PENDING

    run(whole())


def test_children_and_forks_are_runs_of_queues_too(tmp_path: Path) -> None:
    async def whole() -> None:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context, value: int) -> int:
            return value + 1

        @app.run(version=1)
        async def parent(context: Context, value: int) -> int:
            started = await context.start_child(child, value, queue="mail", key="k", priority=2)
            return await started.result()

        @app.run(version=1)
        async def lost(context: Context) -> None:
            with pytest.raises(OperationFailed) as failed:
                await context.start_child(child, 1, queue="male")
            assert failed.value.code == "UnknownQueue"

        app.queue("mail", concurrency=1)
        async with app:
            handle = await app.start(parent, 1, run_id=RUN, queue="mail")
            assert await handle.result() == 2
            (row,) = await app.store.list_children(RUN, limit=9)
            assert row.queued == Queued("mail", "k", 2)
            await (await app.start(lost)).result()
            await app.pause_queue("mail")
            fork = await app.fork(RUN, "child/1", repeat_effects=True)
            row = await app.find(fork.run_id)
            assert (row.queued, row.started_at) == (Queued("mail"), None)
            await ticks(app)
            assert await fork.status() is RunState.PENDING

    run(whole())


def test_only_a_queue_that_somebody_declared_takes_runs(tmp_path: Path) -> None:
    async def whole() -> None:
        gate = Gate()
        worker, starter = gate.app(tmp_path, concurrency=1), app_on(tmp_path)
        starter.run(version=1, name="work")(gate.work)
        starter.queue("post", concurrency=3)
        async with starter.connect():
            with pytest.raises(UnknownQueue, match=r"'mail' in this store: declare it with app\."):
                await starter.start("work", 1, run_id=RUN, queue="mail")
            assert await starter.list() == []
            async with worker:
                await starter.start("work", 1, run_id=RUN, queue="mail")
                again = await starter.start("work", 1, run_id=RUN)
                assert await stands(worker, RunState.RUNNING) is RunState.RUNNING
                gate.open.set()
                assert await again.result() == 1
            await starter.start("work", 2, queue="post")
            async with gate.app(tmp_path, concurrency=2).connect() as looks:
                limits = {row.name: row.limits.concurrency for row in await looks.queues()}
            assert limits == {"mail": 1, "post": 3}, "only a worker changes limits"

    run(whole())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency is a whole number from 1, not 0"),
        ({"key_concurrency": True}, "key_concurrency is a whole number from 1, not True"),
        ({"rate": (0, 1.0)}, "rate_runs is a whole number from 1, not 0"),
        ({"rate": (1, 0.0)}, "a finite time over 0, not 0.0"),
        ({"rate": (1, float("inf"))}, "a finite time over 0, not inf"),
        ({"name": "to whom"}, "the queue's name 'to whom' is not an identifier"),
        ({"name": "m" * 65}, "at most 64 characters"),
        ({"name": "mail"}, "there is a queue 'mail' already"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_no_queue_is_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    app = app_on(tmp_path)
    app.queue("mail")
    with pytest.raises(InvalidOptions, match=why):
        app.queue(**{"name": "other", **options})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "a"}, "a key and a priority are a queue's"),
        ({"priority": 1}, "a key and a priority are a queue's"),
        ({"queue": "mail", "key": ""}, "the queue's key '' is not an identifier"),
        ({"queue": "mail", "priority": 1 << 15}, "from -32767 to 32767, not 32768"),
        ({"queue": "mail", "priority": 0.5}, "a whole number"),
    ],
    ids=["key", "priority", "empty", "high", "half"],
)
def test_what_is_no_place_in_a_queue_is_refused(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    async def whole() -> None:
        gate = Gate()
        async with gate.app(tmp_path).connect() as app:
            with pytest.raises(InvalidOptions, match=why):
                await app.start("work", 1, **options)
            assert await app.list() == []

    run(whole())
