"""Effects of a run beside each other, and beside a worker that closes, is told to stop or ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RunCancelled,
    RunNeedsAttention,
    RunState,
    current,
    effect,
    operation,
)
from perdure.effects.answer import Landed, NeverWill
from perdure.effects.receipt import ReceiptState
from perdure.errors import StorageError
from tests.harness import RUN, app_on, keys, once, run, sql, until
from tests.paying import KEY, Paying, told
from tests.receipts import Bank

COMPLETED, AMBIGUOUS = ReceiptState.COMPLETED, ReceiptState.AMBIGUOUS
DOUBTS = "perdure_side_effect_ambiguous_total"
STATES = "SELECT ordinal, state FROM receipts ORDER BY idempotency_key, ordinal"


@pytest.mark.parametrize(
    ("options", "answers", "result", "after"),
    [
        ({}, [], None, (AMBIGUOUS, 1, False)),
        ({"support": "idempotent"}, [], "paid", (COMPLETED, 2, False)),
        ({"on_ambiguous": "retry"}, [], "paid", (COMPLETED, 2, True)),
        ({"on_ambiguous": "tell"}, [], "EffectAmbiguous", (AMBIGUOUS, 1, False)),
        ({"support": "outcome_queryable"}, [Landed("found")], "found", (COMPLETED, 1, False)),
        ({"support": "outcome_queryable"}, [NeverWill()], "paid", (COMPLETED, 2, False)),
    ],
    ids=["ask", "idempotent", "retry", "tell", "landed", "never-will"],
)
def test_what_closing_cut_short_is_doubted_and_settled_by_who_goes_on(
    tmp_path: Path, options: Any, answers: list[Any], result: Any, after: Any
) -> None:
    bank = Bank(asyncio.Event(), "paid", answers=answers)

    async def main() -> None:
        paying = Paying(tmp_path, bank, **options)
        await paying.cut_short()
        assert told(await paying.receipt()) == (AMBIGUOUS, 1, False)
        if result is None:
            with pytest.raises(RunNeedsAttention, match="the attempt was cancelled"):
                await paying.pay()
        else:
            got = await paying.pay()
            assert (got[0] if isinstance(got, list) else got) == result
        assert told(await paying.receipt()) == after

    run(main())
    assert (bank.sent, bank.asked) == (after[1], len(answers))


class Street:
    """Three shops beside each other; the first one's answer is lost."""

    def __init__(self, folder: Path) -> None:
        self.app = app_on(folder)
        self.calls: list[str] = []
        self.go = asyncio.Event()
        self.both = asyncio.Event()
        self.parked = asyncio.Event()

    async def lost(self) -> None:
        self.calls.append("lost")
        await self.both.wait()
        raise ConnectionResetError("gone")

    async def slow(self) -> str:
        self.calls.append("slow")
        self.both.set()
        await self.go.wait()
        return "slow"

    async def third(self) -> str:
        self.calls.append("third")
        return "third"

    @operation(name="outer", read_only=True)
    async def outer(self) -> None:
        context = current()
        assert context is not None
        await context.call(self.lost)

    async def walk(self, function: Callable[[Context], Coroutine[Any, Any, Any]]) -> None:
        """Execute a run until it parks; the slow shop ends only once the lost one is in doubt."""
        async with self.app as app:
            handle = await app.start(function, run_id=RUN)
            await until(lambda: app.observer.counts[DOUBTS] == 1)
            await time_to_go_on(app)
            assert (await app.find(RUN)).state is RunState.RUNNING
            self.go.set()
            with pytest.raises(RunNeedsAttention, match=r"Street\.lost"):
                await handle.result()


async def time_to_go_on(app: App) -> None:
    """Let the loop go round often enough for whoever would not wait."""
    for _ in range(20):
        await app.store.list_operations(RUN)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", ["gather", "group", "tasks"])
def test_what_is_under_way_beside_an_ambiguous_effect_ends_and_is_recorded(
    tmp_path: Path, shape: str, *, nested: bool
) -> None:
    async def main() -> None:
        street = Street(tmp_path)
        first = street.outer if nested else street.lost

        @street.app.run(version=1)
        async def work(context: Context) -> None:
            one, two = context.call(first), context.branch("b").call(street.slow)
            if shape == "gather":
                await asyncio.gather(one, two)
            elif shape == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(one)
                    group.create_task(two)
            else:
                left = asyncio.create_task(two)
                try:
                    await one
                finally:
                    assert left.done()
            await context.call(street.third)

        await street.walk(work)
        assert await keys(street.app) == [("branch.b.1.call", 1)]
        assert street.calls == ["lost", "slow"]
        states = {state for _, state in sql(tmp_path, STATES)}
        assert states == {"ambiguous", "completed"}

    run(main())


def test_two_that_are_ambiguous_at_once_do_not_wait_for_each_other(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    both = asyncio.Barrier(3)

    async def lost() -> None:
        await both.wait()
        raise ConnectionResetError("gone")

    @operation(read_only=True)
    async def outer() -> None:
        context = current()
        assert context is not None
        inner = [context.branch(name).call(lost) for name in "ab"]
        await asyncio.gather(*inner)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await asyncio.gather(context.call(outer), context.branch("c").call(lost))

    with pytest.raises(RunNeedsAttention):
        run(once(app, work))
    assert [state for _, state in sql(tmp_path, STATES)] == ["ambiguous"] * 3
    assert run(keys(app)) == []


@pytest.mark.parametrize("swallows", [Exception, BaseException])
def test_an_operation_around_an_ambiguous_one_has_no_outcome_whatever_it_swallows(
    tmp_path: Path, swallows: type[BaseException]
) -> None:
    bank = Bank(ConnectionResetError("gone"))

    async def main() -> None:
        paying = Paying(tmp_path, bank)
        calls: list[str] = []

        @operation(read_only=True)
        async def outer() -> str:
            context = current()
            assert context is not None
            calls.append("outer")
            try:
                return await context.call(paying.charge, 5)
            except swallows:
                return "swallowed"

        @paying.app.run(version=1)
        async def work(context: Context) -> str:
            return await context.call(outer)

        paying.function = work
        with pytest.raises(RunNeedsAttention):
            await paying.pay()
        assert await keys(paying.app) == []
        receipt = await paying.receipt()
        async with paying.store() as store:
            key, version = receipt.operation_key, receipt.version
            await store.settle(key, Landed("paid"), by="ada", why="saw it", expect_version=version)
        assert await paying.pay() == "paid"
        assert calls == ["outer", "outer"]

    run(main())
    assert bank.sent == 1


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("says", ["paid", "refuses"])
def test_a_cancelled_run_ends_once_each_effect_has_settled_or_is_in_doubt(
    tmp_path: Path, says: str, *, in_thread: bool
) -> None:
    """T36: one of two effects under way ignores its cancellation, and succeeds after it."""
    app = app_on(tmp_path)
    go = threading.Event()

    async def main() -> None:
        begun = [asyncio.Event(), asyncio.Event()]
        loop = asyncio.get_running_loop()

        @effect(rejected=ValueError)
        async def obeys() -> None:
            begun[0].set()
            await asyncio.Event().wait()

        async def ignores() -> str:
            begun[1].set()
            while not go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if says == "refuses":
                raise ValueError("no")
            return "paid"

        def blocks() -> str:
            loop.call_soon_threadsafe(begun[1].set)
            go.wait()
            if says == "refuses":
                raise ValueError("no")
            return "paid"

        stubborn = effect(rejected=ValueError)(blocks if in_thread else ignores)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await asyncio.gather(context.call(obeys), context.call(stubborn))

        async with app:
            handle = await app.start(work, run_id=RUN)
            for each in begun:
                await each.wait()
            try:
                await handle.cancel()
                await until(lambda: app.observer.counts[DOUBTS] == 1)
                await time_to_go_on(app)
                assert (await app.find(RUN)).state is RunState.CANCELLING
                assert sql(tmp_path, STATES) == [(1, "ambiguous"), (2, "in_flight")]
            finally:
                go.set()
            with pytest.raises(RunCancelled):
                await handle.result()

    run(main())
    # Who raises after it was told to stop may do so because of that.
    second = {"paid": "completed", "refuses": "ambiguous"}[says]
    assert sql(tmp_path, STATES) == [(1, "ambiguous"), (2, second)]
    assert run(keys(app)) == ([("call", 2)] if second == "completed" else [])


@pytest.mark.parametrize(
    ("method", "errors", "sent"),
    [
        ("claim_effect", [StorageError("on fire")], 1),
        ("settle_record", [StorageError("on fire")], 1),
    ],
)
def test_a_store_that_refuses_around_an_effect_leads_to_no_second_call(
    tmp_path: Path, method: str, errors: list[Exception], sent: int
) -> None:
    bank = Bank("paid", "again")

    async def main() -> None:
        paying = Paying(tmp_path, bank)
        async with paying.app as app:
            genuine = getattr(app.store, method)

            async def refusing(*args: Any) -> Any:
                if errors:
                    raise errors.pop()
                return await genuine(*args)

            setattr(app.store, method, refusing)
            handle = await app.start(paying.function, run_id=RUN)
            if method == "claim_effect":
                assert await handle.result() == "paid"
            else:
                with pytest.raises(RunNeedsAttention, match=KEY):
                    await handle.result()
        receipt = await paying.receipt()
        assert told(receipt)[0] is (COMPLETED if method == "claim_effect" else AMBIGUOUS)

    run(main())
    assert bank.sent == sent


@pytest.mark.parametrize("read_only", [True, False])
def test_what_a_thread_did_while_its_worker_closed_is_recorded(
    tmp_path: Path, *, read_only: bool
) -> None:
    calls: list[str] = []

    async def main() -> Any:
        go, begun = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        @operation(read_only=read_only)
        def pay() -> str:
            calls.append("pay")
            loop.call_soon_threadsafe(begun.set)
            go.wait()
            return "paid"

        async def code(context: Context) -> str:
            with suppress(asyncio.CancelledError):
                return await context.call(pay)
            calls.append("cancelled")
            return "cut short"

        async def open_once_cancelled() -> None:
            (task,) = (t for t in asyncio.all_tasks() if t.get_name() == f"perdure {RUN}")
            await until(lambda: task.cancelling() > 0)
            go.set()

        first, second = app_on(tmp_path), app_on(tmp_path)
        first.run(version=1)(code)
        async with first:
            await first.start(code, run_id=RUN)
            await begun.wait()
            opener = asyncio.create_task(open_once_cancelled())
        await opener
        second.run(version=1)(code)
        async with second:
            return await second.handle(RUN).result()

    assert run(main()) == "paid"
    assert calls == ["pay", "cancelled"]
