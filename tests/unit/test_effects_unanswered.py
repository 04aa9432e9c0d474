"""What becomes of an effect whose target cannot say: when it is asked again, and when no more."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from perdure.effects.answer import Landed, Unknown
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.support import EffectPolicy
from perdure.errors import EffectAmbiguous, StaleDecision
from tests.harness import run, sql
from tests.receipts import KEY, QUERYABLE, Bank, Shop, answering, doubtful, shop

LOST = ConnectionResetError("gone")


async def doubted(it: Shop, bank: Bank, policy: EffectPolicy) -> Receipt:
    """Pay until nobody knows what became of it, and return the receipt."""
    with pytest.raises(EffectAmbiguous):
        await it.pay_in_time(bank, policy)
    return await it.receipt()


def pause_of(it: Shop, receipt: Receipt) -> float:
    """Return in how many seconds the target may be asked again."""
    assert receipt.lookup_at is not None
    return receipt.lookup_at - it.clock.now()


SILENT = [
    (Unknown(), r"could not say[;.]"),
    (Unknown(cast("Any", None)), r"could not say[;.]"),
    (Unknown("down"), "could not say: down"),
    (LOST, "could not say: ConnectionResetError: gone"),
    (KeyError(), "could not say: KeyError"),
    (asyncio.CancelledError(), "could not say: CancelledError"),
    (BaseExceptionGroup("all", [KeyboardInterrupt()]), "could not say: BaseExceptionGroup: all"),
    ("yes", "could not say: the lookup returned a str, which is no answer"),
    (Landed(object()), "could not say: InvalidPayload: "),
]


@pytest.mark.parametrize(("answer", "words"), SILENT, ids=lambda value: repr(value)[:20])
def test_who_can_not_say_is_asked_three_times_and_then_a_person_is(
    tmp_path: Path, answer: Any, words: str
) -> None:
    async def main() -> None:
        bank = answering(answer)
        async with shop(tmp_path) as it:

            async def doubted(told: str, *, asked: int, at: float) -> None:
                with pytest.raises(EffectAmbiguous, match=told):
                    await it.pay_in_time(bank, QUERYABLE)
                assert (bank.asked, it.clock.monotonic()) == (asked, at)

            await doubted(words, asked=2, at=5.0)
            await doubted("could not say; it can be asked again later. Look at", asked=2, at=5.0)
            assert not (await it.receipt()).exhausted
            it.clock.advance(20.0)
            await doubted(words, asked=3, at=25.0)
            receipt = await it.receipt()
            assert (receipt.state, receipt.exhausted) == (ReceiptState.AMBIGUOUS, True)
            assert it.audit.records[-1]["operation_reconciliation_exhausted"] is True
            await doubted("could not say. Look at", asked=3, at=25.0)
            assert it.counted("reconciliation_failed") == 1
        assert bank.sent == 1

    run(main())


def test_who_is_asked_often_is_asked_ever_later(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(QUERYABLE, reconcile_attempts=9)

    async def main() -> None:
        bank = answering()
        async with shop(tmp_path) as it:
            pauses: list[float] = []
            while not (receipt := await doubted(it, bank, policy)).exhausted:
                pauses.append(pause_of(it, receipt))
                it.clock.advance(pauses[-1])
            assert pauses == [20.0, 80.0, 320.0, 1280.0, 3600.0, 3600.0, 3600.0]
        assert bank.asked == 9

    run(main())


@pytest.mark.parametrize(("attempts", "asked"), [(2, [0.0, 65.0]), (3, [0.0, 5.0, 65.0])])
def test_the_last_lookup_is_kept_until_nothing_can_arrive_any_more(
    tmp_path: Path, attempts: int, asked: list[float]
) -> None:
    policy = msgspec.structs.replace(QUERYABLE, reconcile_attempts=attempts)

    async def main() -> None:
        async with shop(tmp_path) as it:
            await doubtful(it, policy)
            times: list[float] = []

            def say() -> Unknown:
                times.append(it.clock.monotonic())
                return Unknown()

            bank = answering(say)
            receipt = await doubted(it, bank, policy)
            assert (times, receipt.exhausted) == (asked[:-1], False)
            it.clock.advance(pause_of(it, receipt))
            receipt = await doubted(it, bank, policy)
            assert (times, receipt.exhausted) == (asked, True)

    run(main())


def test_a_lookup_that_takes_too_long_has_said_nothing(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(QUERYABLE, reconcile_attempts=1)

    async def main() -> None:
        bank = Bank(LOST, answers=[asyncio.Event()])
        async with shop(tmp_path) as it:
            task = asyncio.create_task(it.pay(bank, policy))
            await it.clock.until_sleeping()
            it.clock.advance(29.9)
            assert (await it.receipt()).lookups == 0
            it.clock.advance(0.1)
            with pytest.raises(EffectAmbiguous, match="TimeoutError: it took over 30 s"):
                await task

    run(main())


@pytest.mark.parametrize(
    ("asking", "risk", "older", "stale"),
    [
        (False, False, 0, False),
        (False, False, 4, False),
        (False, False, 5, True),
        (True, False, 5, False),
        (True, False, 6, True),
        (False, True, 1, True),
        (False, False, -1, True),
    ],
)
def test_a_decision_stands_although_the_target_was_asked_in_vain(
    tmp_path: Path, asking: bool, risk: bool, older: int, stale: bool
) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            bank = Bank(LOST, answers=[Unknown(), Unknown(), asyncio.Event()])
            await doubted(it, bank, QUERYABLE)
            paying: asyncio.Task[Any] | None = None
            if asking:
                it.clock.advance(20.0)
                paying = asyncio.create_task(it.pay(bank, QUERYABLE))
                await it.clock.until_sleeping()
            sql(tmp_path, "UPDATE receipts SET residual_duplicate_risk = ?", int(risk))
            version = (await it.receipt()).version - older
            with pytest.raises(StaleDecision) if stale else nullcontext():
                await it.store.settle(KEY, Landed(3), by="a", why="b", expect_version=version)
            assert (await it.receipt()).state.value == ("ambiguous" if stale else "completed")
            if paying is not None:
                paying.cancel()
                await asyncio.wait([paying])

    run(main())
