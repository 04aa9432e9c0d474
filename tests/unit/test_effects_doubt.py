"""How doubt is settled by a key, by a person, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import OperationIdentity, ReceiptStore, guard
from perdure.clock import SystemClock
from perdure.effects.answer import Decision, Landed, NeverWill, SendAgain
from perdure.effects.receipt import ReceiptState
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import (
    EffectAmbiguous,
    EffectNotSent,
    EffectRejected,
    InvalidFunction,
    StaleDecision,
    UnknownEffect,
)
from tests.harness import run
from tests.receipts import (
    ASK,
    IDEMPOTENT,
    KEY,
    QUERYABLE,
    RETRY,
    Bank,
    doubtful,
    shop,
)

LOST = ConnectionResetError("gone")


# --- under a key ---------------------------------------------------------------------------------


def test_an_idempotent_effect_is_sent_again_under_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(LOST, LOST, "done")
        async with shop(tmp_path) as it:
            assert await it.pay_in_time(bank, IDEMPOTENT) == "done"
            receipt = await it.receipt()
            assert (receipt.attempt, receipt.residual_duplicate_risk) == (3, False)
            assert it.counted("first_execution") == 1
            assert it.counted("ambiguous") == 2
            assert it.counted("reconciliation_succeeded") == 1
        assert bank.sent == 3

    run(main())


def test_a_call_gives_up_after_five_attempts_and_the_next_call_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(*[LOST] * 5, "done")
        async with shop(tmp_path) as it:
            with pytest.raises(EffectAmbiguous, match="5 attempts had no answer"):
                await it.pay_in_time(bank, IDEMPOTENT)
            assert bank.sent == 5
            assert await it.pay_in_time(bank, IDEMPOTENT) == "done"

    run(main())


@pytest.mark.parametrize(("seconds", "sent"), [(99.0, 1), (100.0, 0)])
def test_a_key_is_used_as_long_as_the_target_knows_it(
    tmp_path: Path, seconds: float, sent: int
) -> None:
    policy = msgspec.structs.replace(IDEMPOTENT, key_valid_for_seconds=100.0)

    async def main() -> None:
        bank = Bank("done")
        async with shop(tmp_path) as it:
            await doubtful(it, policy)
            it.clock.advance(seconds)
            if sent:
                assert await it.pay(bank, policy) == "done"
            else:
                with pytest.raises(EffectAmbiguous):
                    await it.pay(bank, policy)
        assert bank.sent == sent

    run(main())


def test_a_target_that_forgot_the_key_is_asked(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(IDEMPOTENT, key_valid_for_seconds=0.0)

    async def main() -> None:
        bank = Bank(answers=[Landed("done")])
        async with shop(tmp_path) as it:
            await doubtful(it, policy)
            assert await it.pay(bank, policy, lookup=True) == "done"

    run(main())


def test_support_that_was_declared_later_does_not_cover_what_was_sent_before(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        bank = Bank("never", answers=[NeverWill()])
        async with shop(tmp_path) as it:
            await doubtful(it, ASK)
            for policy in (IDEMPOTENT, QUERYABLE):
                with pytest.raises(EffectAmbiguous):
                    await it.pay(bank, policy)
        assert bank.sent + bank.asked == 0

    run(main())


def test_what_was_not_sent_says_nothing_of_the_attempt_before(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(*[EffectNotSent("no route")] * 5)
        async with shop(tmp_path) as it:
            await doubtful(it, IDEMPOTENT)
            with pytest.raises(EffectAmbiguous, match="no route"):
                await it.pay_in_time(bank, IDEMPOTENT)
            assert (await it.receipt()).state is ReceiptState.AMBIGUOUS

    run(main())


def test_a_target_that_knows_the_key_refuses_for_all_attempts(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await doubtful(it, IDEMPOTENT)
            with pytest.raises(EffectRejected):
                await it.pay(Bank(EffectRejected("no funds")), IDEMPOTENT)
            assert (await it.receipt()).state is ReceiptState.FAILED

    run(main())


# --- without one ---------------------------------------------------------------------------------


def test_retry_sends_again_and_says_that_this_may_be_a_duplicate(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(LOST, "done")
        async with shop(tmp_path) as it:
            assert await it.pay_in_time(bank, RETRY) == "done"
            receipt = await it.receipt()
            assert (receipt.attempt, receipt.residual_duplicate_risk) == (2, True)
            assert it.audit.records[-1]["operation_residual_duplicate_risk"] is True
            assert it.counted("reconciliation_succeeded") == 0

    run(main())


def test_a_refused_retry_leaves_the_doubt_about_the_first_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(LOST, *[EffectRejected("twice")] * 4)
        async with shop(tmp_path) as it:
            with pytest.raises(EffectAmbiguous, match="twice"):
                await it.pay_in_time(bank, RETRY)
            assert (await it.receipt()).state is ReceiptState.AMBIGUOUS

    run(main())


# --- by a person ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "state", "result", "risk"),
    [
        (Landed({"id": 1}), ReceiptState.COMPLETED, {"id": 1}, False),
        (NeverWill(), ReceiptState.FAILED, "sent", False),
        (SendAgain(), ReceiptState.FAILED, "sent", True),
    ],
)
def test_a_person_settles_what_nobody_knows(
    tmp_path: Path, decision: Decision, state: ReceiptState, result: Any, risk: bool
) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            seen = await doubtful(it, ASK)
            settled = await it.store.settle(
                KEY, decision, by="ada", why="the statement", expect_version=seen.version
            )
            assert (settled.state, settled.decided_by, settled.decided_why) == (
                state,
                "ada",
                "the statement",
            )
            assert await it.store.list(ambiguous_only=True) == []
            assert await it.pay(Bank("sent")) == result
            assert (await it.receipt()).residual_duplicate_risk == risk
            assert it.counted("reconciliation_succeeded") == 1

    run(main())


def test_a_decision_about_what_has_changed_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            with pytest.raises(UnknownEffect, match=KEY):
                await it.store.settle(KEY, NeverWill(), by="a", why="b", expect_version=1)
            seen = await doubtful(it, ASK)
            for version in (seen.version - 1, seen.version + 1):
                with pytest.raises(StaleDecision, match=f"version {seen.version}, and"):
                    await it.store.settle(KEY, NeverWill(), by="a", why="b", expect_version=version)
            assert await it.receipt() == seen
            await it.store.settle(KEY, Landed(), by="a", why="b", expect_version=seen.version)
            with pytest.raises(StaleDecision, match="completed"):
                await it.store.settle(
                    KEY, NeverWill(), by="a", why="b", expect_version=seen.version + 1
                )

    run(main())


def test_whoever_lists_sees_what_a_dead_process_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            seen = await doubtful(it, ASK)
            assert await it.store.list(ambiguous_only=True) == [seen]
            assert it.counted("ambiguous") == 1

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": -1},
        {"key_valid_for_seconds": float("nan")},
        {"settle_seconds": -0.1},
        {"reconcile_attempts": 0},
    ],
)
def test_a_policy_is_made_of_times_and_counts(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidFunction, match=next(iter(wrong))):
        EffectPolicy(support=SideEffectSupport.IDEMPOTENT, on_ambiguous=OnAmbiguous.ASK, **wrong)


class Hurried(SystemClock):
    """A clock on which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def test_a_target_that_never_answers_is_not_sent_to_without_end(tmp_path: Path) -> None:
    async def main() -> None:
        sent = 0

        async def send(identity: OperationIdentity) -> None:
            nonlocal sent
            sent += 1
            raise ConnectionError("refused \ud800")

        async def lookup(identity: OperationIdentity) -> NeverWill:
            return NeverWill("\ud800")

        url = f"sqlite:///{tmp_path / 'receipts.db'}"
        async with ReceiptStore(url, clock=Hurried()) as store:
            with pytest.raises(EffectRejected, match="5 attempts were not applied"):
                await guard(
                    store,
                    OperationIdentity("run", "key", "bank"),
                    send,
                    policy=EffectPolicy(
                        support=SideEffectSupport.OUTCOME_QUERYABLE, timeout_seconds=1.0
                    ),
                    lookup=lookup,
                )
        assert sent == 5

    run(main())
