"""What a caller of `guard` gets, and what is counted and written of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.effects.receipt import ReceiptState
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import (
    EffectAmbiguous,
    EffectConflict,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    EngineClosed,
    InvalidUrl,
    StorageError,
    StorageFull,
)
from perdure.receipts import ReceiptStore, guard
from perdure.testing.manual_clock import ManualClock
from tests.harness import run, sql, until
from tests.receipts import ASK, CHARGE, IDEMPOTENT, KEY, TELL, Bank, Shop, shop

pytestmark = pytest.mark.usefixtures("storage")

LOST = ConnectionResetError("gone")


def test_an_effect_is_applied_once_and_its_receipt_answers_after(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank({"id": 1})
        async with shop(tmp_path) as first:
            assert await first.pay(bank) == {"id": 1}
            assert await first.pay(bank) == {"id": 1}
        async with shop(tmp_path) as second:
            assert await second.pay(bank) == {"id": 1}
            assert (await second.receipt()).state is ReceiptState.COMPLETED
        assert bank.sent == 1

    run(main())


def test_without_a_store_it_only_sends() -> None:
    assert run(guard(None, CHARGE, Bank(7).send)) == 7


def test_the_claim_is_committed_before_anything_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await it.pay(Bank(1))
            effect = [p for p in it.points if p.startswith("effect") or "receipt" in p]
            assert effect == [
                "commit.begin receipt.claim",
                "commit.done receipt.claim",
                "effect.send",
                "effect.sent",
                "commit.begin receipt.settle",
                "commit.done receipt.settle",
            ]

    run(main())


@pytest.mark.parametrize("refusal", [EffectRejected("no funds"), EffectNotSent("no route")])
def test_a_refusal_is_a_failure_and_another_call_may_try_again(
    tmp_path: Path, refusal: Exception
) -> None:
    async def main() -> None:
        bank = Bank(refusal, "done")
        async with shop(tmp_path) as it:
            with pytest.raises(type(refusal), match=str(refusal)):
                await it.pay(bank)
            failed = await it.receipt()
            assert (failed.state, failed.problem) == (ReceiptState.FAILED, str(refusal))
            assert await it.pay(bank) == "done"
            assert (await it.receipt()).attempt == 2

    run(main())


@pytest.mark.parametrize("policy", [ASK, TELL])
@pytest.mark.parametrize("error", [LOST, TimeoutError(), ValueError("a bug")])
def test_all_else_is_doubt_that_nobody_sends_through(
    tmp_path: Path, error: Exception, policy: EffectPolicy
) -> None:
    async def main() -> None:
        bank = Bank(error)
        async with shop(tmp_path) as it:
            for _ in range(2):
                with pytest.raises(EffectAmbiguous, match=type(error).__name__) as caught:
                    await it.pay(bank, policy)
                assert caught.value.needs_person == (policy is ASK)
            assert (await it.receipt()).state is ReceiptState.AMBIGUOUS
            assert it.counted("ambiguous") == 1
        assert bank.sent == 1

    run(main())


def test_a_result_that_is_no_json_is_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            with pytest.raises(EffectAmbiguous, match="InvalidPayload"):
                await it.pay(Bank(object()))

    run(main())


def test_an_attempt_that_takes_too_long_is_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            with pytest.raises(EffectAmbiguous, match="TimeoutError"):
                await it.pay(Bank(asyncio.Event()), EffectPolicy(timeout_seconds=0.01))
            receipt = await it.receipt()
            # Told to stop is not stopped: its deadline still counts.
            assert receipt.resend_after == it.clock.now() + 0.01

    run(main())


def test_an_attempt_whose_time_is_over_before_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()

        def late(point: str) -> None:
            if point == "commit.done receipt.claim":
                clock.advance(61)

        bank = Bank("never")
        async with shop(tmp_path, clock=clock, probe=late) as it:
            with pytest.raises(EffectNotSent, match="its time was over"):
                await it.pay(bank, EffectPolicy(timeout_seconds=60))
            assert (await it.receipt()).state is ReceiptState.FAILED
        assert bank.sent == 0

    run(main())


def test_a_repeat_that_comes_too_late_leaves_the_doubt_of_the_attempt_before(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock, left = ManualClock(), [True]

        def late(point: str) -> None:
            if point == "commit.done receipt.resend" and left:
                left.clear()
                clock.advance(61)

        bank = Bank(ConnectionResetError("gone"), "done")
        policy = EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=60)
        async with shop(tmp_path, clock=clock, probe=late) as it:
            assert await it.pay_in_time(bank, policy) == "done"
            receipt = await it.receipt()
            assert (receipt.state, receipt.attempt) == (ReceiptState.COMPLETED, 3)
        assert bank.sent == 2

    run(main())


def test_a_cancelled_send_leaves_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(asyncio.Event())
        async with shop(tmp_path) as it:
            task = asyncio.create_task(it.pay(bank))
            await bank.reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            receipt = await it.receipt()
            assert (receipt.state, receipt.problem) == (
                ReceiptState.AMBIGUOUS,
                "the attempt was cancelled",
            )
            assert it.counted("ambiguous") == 1

    run(main())


@pytest.mark.parametrize("turns", range(8))
def test_a_claim_whose_caller_is_cancelled_does_not_stay_in_flight(
    tmp_path: Path, turns: int
) -> None:
    async def main() -> None:
        bank = Bank("done", "done")
        async with shop(tmp_path) as it:
            await it.store._ready()
            task = asyncio.create_task(it.pay(bank))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # What it was about to write is written all the same.
            while ReceiptState.IN_FLIGHT in {receipt.state for receipt in await it.store.list()}:
                await asyncio.sleep(0)
            if not bank.sent:
                assert await it.pay(bank) == "done"

    run(main())


def test_two_callers_of_one_process_never_both_send(tmp_path: Path) -> None:
    async def main() -> None:
        held = asyncio.Event()
        bank = Bank(held, "done")
        async with shop(tmp_path) as it:
            callers = [asyncio.create_task(it.pay(bank)) for _ in range(5)]
            await until(lambda: sum(task.done() for task in callers) == 4)
            (sending,) = [task for task in callers if not task.done()]
            assert {type(task.exception()) for task in callers if task.done()} == {EffectInProgress}
            assert (await it.receipt()).state is ReceiptState.IN_FLIGHT
            held.set()
            assert await sending == "done"
        assert bank.sent == 1

    run(main())


def test_a_second_caller_waits_for_the_first_as_long_as_it_wants(tmp_path: Path) -> None:
    async def main() -> None:
        held = asyncio.Event()
        bank = Bank(held, "done")
        clock = ManualClock()
        async with shop(tmp_path, clock=clock) as one, shop(tmp_path, clock=clock) as two:
            first = asyncio.create_task(one.pay(bank))
            await bank.reached.wait()
            impatient = asyncio.create_task(two.pay(bank, wait_seconds=0.01))
            patient = asyncio.create_task(two.pay(bank, wait_seconds=60))
            await clock.until_sleeping(2)
            clock.advance(0.02)
            with pytest.raises(EffectInProgress):
                await impatient
            held.set()
            assert await first == "done"
            while not patient.done():
                clock.advance(0.02)
                await asyncio.sleep(0)
            assert await patient == "done"
            assert two.counted("replay_suppressed") == 1
        assert bank.sent == 1

    run(main())


@pytest.mark.parametrize("sends", [["done"], [LOST], [EffectRejected("no")]])
def test_an_effect_stands_for_one_set_of_arguments(tmp_path: Path, sends: list[Any]) -> None:
    async def main() -> None:
        bank = Bank(*sends, "never")
        async with shop(tmp_path) as it:
            with suppress(EffectAmbiguous, EffectRejected):
                await it.pay(bank, arguments={"euro": 5})
            before = await it.receipt()
            with pytest.raises(EffectConflict, match=KEY):
                await it.pay(bank, arguments={"euro": 6})
            assert await it.receipt() == before
        assert bank.sent == 1

    run(main())


def test_a_vanished_process_leaves_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        bank = Bank(asyncio.Event(), "never")
        async with shop(tmp_path, clock=clock) as old, shop(tmp_path, clock=clock) as new:
            task = asyncio.create_task(old.pay(bank))
            await bank.reached.wait()
            with pytest.raises(EffectInProgress):
                await new.pay(bank)
            sql(tmp_path, "UPDATE workers SET gone = 2 WHERE holder = ?", old.store.owner().holder)
            with pytest.raises(EffectAmbiguous, match="its worker is gone"):
                await new.pay(bank)
            assert new.counted("ambiguous") == 1
            task.cancel()
            await asyncio.wait([task])
            assert old.counted("ambiguous") == 0
        assert bank.sent == 1

    run(main())


def test_a_late_completion_settles_the_doubt_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        held, clock = asyncio.Event(), ManualClock()
        bank = Bank(held, "done")
        async with shop(tmp_path, clock=clock) as old, shop(tmp_path, clock=clock) as new:
            task = asyncio.create_task(old.pay(bank))
            await bank.reached.wait()
            sql(tmp_path, "UPDATE workers SET gone = 1 WHERE holder = ?", old.store.owner().holder)
            with pytest.raises(EffectAmbiguous):
                await new.pay(bank)
            held.set()
            assert await task == "done"
            assert await new.pay(bank) == "done"

    run(main())


def test_a_late_refusal_does_not_turn_doubt_into_a_failure(tmp_path: Path) -> None:
    async def main() -> None:
        held, clock = asyncio.Event(), ManualClock()
        bank = Bank(held, EffectRejected("no"))
        async with shop(tmp_path, clock=clock) as old, shop(tmp_path, clock=clock) as new:
            task = asyncio.create_task(old.pay(bank))
            await bank.reached.wait()
            sql(tmp_path, "UPDATE workers SET gone = 1 WHERE holder = ?", old.store.owner().holder)
            await new.store.list()
            held.set()
            with pytest.raises(EffectAmbiguous):
                await task
            assert (await new.receipt()).state is ReceiptState.AMBIGUOUS

    run(main())


def test_a_worker_that_lost_its_lease_since_the_claim_does_not_send(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        frozen = [True]

        def freeze(point: str) -> None:
            if point == "effect.send" and frozen:
                frozen.pop()
                clock.advance(36_000)

        bank = Bank("done")
        async with shop(tmp_path, clock=clock, probe=freeze) as it:
            assert await it.pay(bank) == "done"
            receipt = await it.receipt()
            assert (receipt.attempt, receipt.earlier_unknown) == (2, False)
            assert it.store.observer.counts["perdure_lease_lost_total"] == 1
        assert bank.sent == 1

    run(main())


def test_a_process_that_can_not_keep_a_lease_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()

        def freeze(point: str) -> None:
            if point == "effect.send":
                clock.advance(36_000)

        bank = Bank("never")
        async with shop(tmp_path, clock=clock, probe=freeze) as it:
            with pytest.raises(StorageError, match="lost its lease 5 times"):
                await it.pay(bank)
        assert bank.sent == 0

    run(main())


def test_an_end_that_could_not_be_written_is_doubted_by_the_next_call(tmp_path: Path) -> None:
    async def main() -> None:
        def fill(point: str) -> None:
            if point == "commit.begin receipt.settle" and full:
                raise StorageFull("no room")

        full = [True]
        bank = Bank("done", "again")
        async with shop(tmp_path, probe=fill) as it:
            with pytest.raises(StorageFull):
                await it.pay(bank, IDEMPOTENT)
            assert (await it.receipt()).state is ReceiptState.IN_FLIGHT
            full.clear()
            assert await it.pay(bank, IDEMPOTENT) == "again"
            assert it.counted("ambiguous") == 1

    run(main())


def test_a_store_opens_again_after_it_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        it = Shop(tmp_path, ManualClock())
        bank = Bank("done")
        for _ in range(2):
            assert await it.pay(bank) == "done"
            await it.store.close()
        assert sql(tmp_path, "SELECT DISTINCT gone FROM workers") == [(1,)]

    run(main())


def test_a_store_belongs_to_one_event_loop(tmp_path: Path) -> None:
    it = Shop(tmp_path, ManualClock())
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(it.pay(Bank("done"))) == "done"
        with pytest.raises(EngineClosed, match="another event loop"):
            run(it.pay(Bank("never")))
        loop.run_until_complete(it.store.close())
    finally:
        loop.close()


def test_a_url_that_names_no_store_is_refused_at_once() -> None:
    with pytest.raises(InvalidUrl):
        ReceiptStore.open("receipts.db")
