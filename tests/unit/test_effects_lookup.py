"""How doubt is settled by asking the target, one caller at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.effects.answer import Landed, NeverWill, NotYet, Unknown
from perdure.effects.receipt import ReceiptState
from perdure.errors import (
    EffectAmbiguous,
    EffectInProgress,
    EffectRejected,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import run, sql
from tests.receipts import (
    QUERYABLE,
    Bank,
    answering,
    doubtful,
    shop,
)

pytestmark = pytest.mark.usefixtures("storage")

LOST = ConnectionResetError("gone")


# --- by asking -----------------------------------------------------------------------------------


def test_what_landed_is_completed_with_what_the_target_says(tmp_path: Path) -> None:
    async def main() -> None:
        bank = answering(Landed({"id": 1}))
        async with shop(tmp_path) as it:
            assert await it.pay(bank, QUERYABLE) == {"id": 1}
            assert (await it.receipt()).state is ReceiptState.COMPLETED
            assert it.counted("reconciliation_succeeded") == 1
            assert it.counted("replay_suppressed") == 0
        assert (bank.sent, bank.asked) == (1, 1)

    run(main())


def test_what_never_will_may_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(LOST, "done", answers=[NeverWill("void")])
        async with shop(tmp_path) as it:
            assert await it.pay(bank, QUERYABLE) == "done"
            receipt = await it.receipt()
            assert (receipt.attempt, receipt.residual_duplicate_risk) == (2, False)
        assert bank.asked == 1

    run(main())


def test_what_has_not_landed_yet_is_sent_again_once_it_no_longer_can(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank("done", answers=[NotYet(), NotYet()])
        async with shop(tmp_path) as it:
            await doubtful(it, QUERYABLE)
            began = it.clock.now()
            task = asyncio.create_task(it.pay(bank, QUERYABLE))
            await it.clock.until_sleeping()
            assert list(it.clock.sleeping) == [65.0]
            assert (bank.sent, bank.asked) == (0, 1)
            it.clock.advance(65.0)
            assert await task == "done"
            assert it.clock.now() == began + 65.0
            assert not (await it.receipt()).residual_duplicate_risk
        assert (bank.sent, bank.asked) == (1, 2)

    run(main())


def test_an_attempt_that_ended_by_itself_need_not_be_waited_out(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(LOST, "done", answers=[NotYet(), NotYet()])
        async with shop(tmp_path) as it:
            task = asyncio.create_task(it.pay(bank, QUERYABLE))
            await it.clock.until_sleeping()
            assert list(it.clock.sleeping) == [QUERYABLE.settle_seconds]
            it.clock.advance(5.0)
            await it.clock.until_sleeping()
            it.clock.advance(0.1)
            assert await task == "done"

    run(main())


def test_an_old_answer_does_not_allow_a_repeat(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await doubtful(it, QUERYABLE)

            def slow() -> NotYet:
                it.clock.advance(65.0)
                return NotYet()

            bank = Bank("never", answers=[slow, Landed("late")])
            assert await it.pay_in_time(bank, QUERYABLE) == "late"
        assert (bank.sent, bank.asked) == (0, 2)

    run(main())


def test_an_attempt_without_an_end_is_never_repeated_on_a_not_yet(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(QUERYABLE, timeout_seconds=None)

    async def main() -> None:
        bank = Bank("never", answers=[NotYet(), NotYet()])
        async with shop(tmp_path) as it:
            await doubtful(it, policy)
            for _ in range(2):
                with pytest.raises(EffectAmbiguous, match="has no timeout_seconds"):
                    await it.pay(bank, policy)
            assert not (await it.receipt()).exhausted
        assert bank.sent == 0

    run(main())


def test_one_caller_asks_and_another_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        held, clock = asyncio.Event(), ManualClock()
        slow, bank = Bank(answers=[held, Landed("done")]), Bank(answers=[Unknown()])
        async with shop(tmp_path, clock=clock) as one, shop(tmp_path, clock=clock) as two:
            await doubtful(one, QUERYABLE)
            task = asyncio.create_task(one.pay(slow, QUERYABLE))
            await slow.reached.wait()
            for it in (one, two):
                with pytest.raises(EffectInProgress):
                    await it.pay(bank, QUERYABLE)
            held.set()
            assert await task == "done"
        assert bank.asked == 0

    run(main())


@pytest.mark.parametrize("answer", [NeverWill(), NotYet(), Unknown(), Landed("slow")])
def test_a_slow_answer_does_not_overrule_what_happened_since(tmp_path: Path, answer: Any) -> None:
    async def main() -> None:
        held, clock = asyncio.Event(), ManualClock()
        slow, bank = Bank(answers=[held, answer]), Bank(asyncio.Event(), answers=[NotYet()])
        async with shop(tmp_path, clock=clock) as one, shop(tmp_path, clock=clock) as two:
            await doubtful(one, QUERYABLE)
            asking = asyncio.create_task(one.pay(slow, QUERYABLE))
            await slow.reached.wait()
            await two.receipt()
            clock.jump(100)  # past the right to ask, and past what the first attempt has left
            sending = asyncio.create_task(two.pay(bank, QUERYABLE))
            while not bank.sent:
                await asyncio.sleep(0)
            newer = await two.receipt()
            assert (newer.state, newer.attempt) == (ReceiptState.IN_FLIGHT, 2)
            held.set()
            with pytest.raises(EffectInProgress):
                await asking
            assert await two.receipt() == newer
            sending.cancel()
            await asyncio.wait([sending])
        assert slow.sent == 0

    run(main())


def test_the_right_to_ask_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        slow, bank = Bank(answers=[asyncio.Event()]), Bank(answers=[Landed("done")])
        async with shop(tmp_path, clock=clock) as one, shop(tmp_path, clock=clock) as two:
            await doubtful(one, QUERYABLE)
            task = asyncio.create_task(one.pay(slow, QUERYABLE))
            await slow.reached.wait()
            sql(tmp_path, "UPDATE workers SET gone = 2 WHERE holder = ?", one.store.owner().holder)
            assert await two.pay(bank, QUERYABLE) == "done"
            task.cancel()
            await asyncio.wait([task])

    run(main())


def test_a_cancelled_lookup_gives_the_right_back(tmp_path: Path) -> None:
    async def main() -> None:
        slow, bank = Bank(answers=[asyncio.Event()]), Bank(answers=[Landed("done")])
        async with shop(tmp_path) as it:
            await doubtful(it, QUERYABLE)
            task = asyncio.create_task(it.pay(slow, QUERYABLE))
            await slow.reached.wait()
            task.cancel()
            await asyncio.wait([task])
            assert await it.pay(bank, QUERYABLE) == "done"

    run(main())


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_who_ends_the_program_in_a_lookup_ends_it(tmp_path: Path, stop: BaseException) -> None:
    async def main() -> None:
        bank = Bank(LOST, answers=[stop, Landed("done")])
        async with shop(tmp_path) as it:
            with pytest.raises(type(stop)):
                await it.pay(bank, QUERYABLE)
            receipt = await it.receipt()
            assert (receipt.lookups, receipt.lookup_holder) == (0, None)
            assert await it.pay(bank, QUERYABLE) == "done"

    run(main())


def test_who_knows_that_it_was_applied_never_sends_again(tmp_path: Path) -> None:
    async def main() -> None:
        held, clock = asyncio.Event(), ManualClock()
        bank, other = Bank(held, "done"), Bank(EffectRejected("seen"), answers=[NeverWill()])
        async with shop(tmp_path, clock=clock) as one, shop(tmp_path, clock=clock) as two:
            task = asyncio.create_task(one.pay(bank, QUERYABLE))
            await bank.reached.wait()
            sql(tmp_path, "UPDATE workers SET gone = 1 WHERE holder = ?", one.store.owner().holder)
            with pytest.raises(EffectRejected):
                await two.pay(other, QUERYABLE)
            held.set()
            with pytest.raises(EffectAmbiguous, match="attempt 1 reported success"):
                await task
            assert (await two.receipt()).residual_duplicate_risk
        assert bank.sent == 1

    run(main())
