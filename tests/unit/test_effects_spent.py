"""How often an effect that can be asked about is sent in all, and that nobody asks for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import App, Context, OperationIdentity, RetryPolicy, effect
from perdure.effects.answer import Landed, NeverWill, NotYet, SendAgain, Unknown
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.support import OnAmbiguous
from perdure.errors import EffectRejected, OperationFailed, RunNeedsAttention
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, in_time, run
from tests.receipts import QUERYABLE, Bank, shop

pytestmark = pytest.mark.usefixtures("storage")

LOST = ConnectionError("503")


class Deaf(Bank):
    """A target that never replies, and that says the same things again and again when asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*[LOST] * 40, answers=[*answers] * 40)


def paying_app(folder: Path, bank: Bank, clock: ManualClock, **options: Any) -> App:
    app = app_on(folder, clock=clock, lease_seconds=1e9)

    @effect(support="outcome_queryable", target="bank", timeout_seconds=9e3, **options)
    async def charge(operation: OperationIdentity) -> str:
        return await bank.send(operation)

    charge.lookup(bank.lookup)

    @app.run(version=1)
    async def pay(context: Context) -> str:
        try:
            return await context.call(charge)
        except OperationFailed as failed:
            return str(failed)

    return app


async def receipt_of(app: App) -> Receipt:
    (receipt,) = await app.store.list_receipts(ambiguous_only=False, limit=9)
    return receipt


async def ended(app: App, clock: ManualClock) -> str:
    """Return the result of the run, however often it is parked, and look on for a while."""
    handle = await app.start("pay", run_id=RUN)
    while (await app.find(RUN)).state.value != "completed":
        clock.advance(1.0)
        await asyncio.sleep(0.001)
    for _ in range(20):
        clock.advance(10.0)
        await asyncio.sleep(0.001)
    return await handle.result()


@pytest.mark.parametrize(
    "answers",
    [[NotYet()], [NeverWill("void")], [Unknown(), Unknown(), NotYet()]],
    ids=["not-yet", "never-will", "parked-between"],
)
def test_what_no_attempt_applied_fails_the_call_after_five(tmp_path: Path, answers: Any) -> None:
    bank, clock = Deaf(*answers), ManualClock()
    last = "void" if isinstance(answers[0], NeverWill) else "no longer arrive: ConnectionError: 503"

    async def main() -> None:
        async with paying_app(tmp_path, bank, clock) as app:
            told = await ended(app, clock)
            assert "5 attempts were not applied, the last: " in told
            assert told.endswith(last)
            receipt = await receipt_of(app)
        assert (receipt.state, receipt.attempt) == (ReceiptState.FAILED, 5)
        assert (receipt.lookup_holder, receipt.residual_duplicate_risk) == (None, False)

    run(main())
    assert bank.sent == 5


def test_workers_that_die_while_they_send_make_it_no_more(tmp_path: Path) -> None:
    clock, sent = ManualClock(), 0

    async def main() -> None:
        nonlocal sent
        for _ in range(5):
            bank = Bank(asyncio.Event(), answers=[NotYet()])
            async with paying_app(tmp_path, bank, clock) as app:
                await app.start("pay", run_id=RUN)
                await bank.reached.wait()
                while not bank.sent:
                    clock.advance(0.1)
                    await asyncio.sleep(0.001)
            sent += bank.sent
            clock.jump(1e4)  # past what the attempt has left
        bank = Bank(answers=[NotYet()])
        async with paying_app(tmp_path, bank, clock) as app:
            assert "5 attempts were not applied, the last: " in await ended(app, clock)
        sent += bank.sent

    run(main())
    assert sent == 5


def test_each_further_try_of_the_call_has_five_of_its_own(tmp_path: Path) -> None:
    retry = RetryPolicy(attempts=2, initial_seconds=1.0)
    bank, clock = Deaf(NotYet()), ManualClock()

    async def main() -> None:
        async with paying_app(tmp_path, bank, clock, retry=retry) as app:
            assert "attempts were not applied" in await ended(app, clock)

    run(main())
    assert bank.sent == 10


def test_a_person_lets_it_be_sent_once_more(tmp_path: Path) -> None:
    answers = [*[NeverWill("void")] * 4, Unknown(), Unknown(), Unknown(), NeverWill("still void")]
    bank, clock = Bank(*[LOST] * 9, answers=answers), ManualClock()

    async def main() -> None:
        async with paying_app(tmp_path, bank, clock) as app:
            handle = await app.start("pay", run_id=RUN)
            with pytest.raises(RunNeedsAttention, match="could not say"):
                await in_time(clock, handle.result())
            while not (receipt := await receipt_of(app)).exhausted:
                clock.advance(1.0)
                await asyncio.sleep(0.001)
            async with shop(tmp_path, clock=clock) as it:
                await it.store.settle(
                    receipt.operation_key,
                    SendAgain(),
                    by="ada",
                    why="the bank was closed",
                    expect_version=receipt.version,
                )
            assert "6 attempts were not applied, the last: still void" in await ended(app, clock)
        assert bank.sent == 6

    run(main())


def test_a_call_without_an_engine_sends_five_times_and_the_next_one_again(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Deaf(NotYet())
        async with shop(tmp_path) as it:
            for sent in (5, 10):
                with pytest.raises(EffectRejected, match="5 attempts were not applied"):
                    await it.pay_in_time(bank, QUERYABLE)
                assert bank.sent == sent
            assert (await it.receipt()).state is ReceiptState.FAILED

    run(main())


def test_who_is_stopped_before_a_repeat_lets_others_ask(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(QUERYABLE, settle_seconds=0.0)

    async def main() -> None:
        bank = Bank(LOST, answers=[NotYet(), Landed("done")])
        async with shop(tmp_path) as it:
            task = asyncio.create_task(it.pay(bank, policy))
            await it.clock.until_sleeping()
            assert (await it.receipt()).lookup_holder is not None
            task.cancel()
            await asyncio.wait([task])
            assert (await it.receipt()).lookup_holder is None
            assert await it.pay(bank, policy) == "done"
        assert (bank.sent, bank.asked) == (1, 2)

    run(main())


def test_who_tries_again_by_itself_lets_others_ask_meanwhile(tmp_path: Path) -> None:
    bank, clock = Bank(LOST, "done", answers=[NotYet(), NotYet(), NotYet()]), ManualClock()
    retry = RetryPolicy(attempts=2, initial_seconds=5.0)
    options = {"retry": retry, "on_ambiguous": OnAmbiguous.RETRY}

    async def main() -> None:
        async with paying_app(tmp_path, bank, clock, **options) as app:
            handle = await app.start("pay", run_id=RUN)
            assert await in_time(clock, handle.result()) == "done"
            assert clock.monotonic() < 30.0

    run(main())
    assert bank.sent == 2
