"""Effects of runs of which nobody knows: who settles them, and how the run goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    EffectNotSent,
    EffectRejected,
    RetryPolicy,
    RunNeedsAttention,
    RunState,
)
from perdure.effects.answer import (
    Decision,
    Landed,
    NeverWill,
    NotYet,
    SendAgain,
    Unknown,
)
from perdure.effects.receipt import ReceiptState
from tests.harness import RUN, in_time, operations, run, until
from tests.paying import KEY, Paying, told
from tests.receipts import Bank

pytestmark = pytest.mark.usefixtures("storage")

FAILED, COMPLETED, AMBIGUOUS = ReceiptState.FAILED, ReceiptState.COMPLETED, ReceiptState.AMBIGUOUS
GONE = ConnectionResetError("gone")
CANCELLED = asyncio.CancelledError("by a library")
RETRY = RetryPolicy(attempts=3, initial_seconds=10, maximum_seconds=60)


async def _park(paying: Paying) -> str:
    with pytest.raises(RunNeedsAttention) as parked:
        await paying.pay()
    assert parked.value.code == "EffectAmbiguous"
    assert await paying.state() is RunState.NEEDS_ATTENTION
    return parked.value.message


@pytest.mark.parametrize(
    "raised",
    [GONE, TimeoutError(), ValueError("a bug"), SystemExit(3), CANCELLED],
    ids=lambda raised: type(raised).__name__,
)
def test_whatever_is_no_refusal_parks_the_run_and_says_what_to_do(
    tmp_path: Path, raised: BaseException
) -> None:
    async def main() -> None:
        paying = Paying(tmp_path, Bank(raised))
        message = await _park(paying)
        assert f"perdure effects show {KEY}" in message
        assert f"applied: {type(raised).__name__}" in message
        assert told(await paying.receipt()) == (AMBIGUOUS, 1, False)
        assert await operations(paying.app) == []
        # Nobody has settled it, so that to go on leads here again.
        async with paying.app.connect():
            await paying.app.resume(RUN)
        await _park(paying)
        assert (paying.bank.sent, paying.counted("ambiguous")) == (1, 1)

    run(main())


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("decision", "result", "after"),
    [
        (Landed("said so"), "said so", (COMPLETED, 1, False)),
        (NeverWill("no trace"), "paid", (COMPLETED, 2, False)),
        (SendAgain(), "paid", (COMPLETED, 2, True)),
    ],
    ids=["landed", "never-will", "send-again"],
)
def test_what_a_person_settles_is_what_the_run_goes_on_with(
    tmp_path: Path, decision: Decision, result: Any, after: Any, *, resume: bool
) -> None:
    bank = Bank(GONE, "paid")

    async def main() -> None:
        paying = Paying(tmp_path, bank)
        await _park(paying)
        await paying.settle(decision)
        assert await paying.state() is RunState.PENDING
        if resume:
            async with paying.app.connect():
                await paying.app.resume(RUN)
        assert await paying.pay() == result
        assert told(await paying.receipt()) == after
        assert len(await operations(paying.app)) == 1

    run(main())
    assert bank.sent == after[1]


@pytest.mark.parametrize(
    ("options", "sends", "result", "after"),
    [
        ({"support": "idempotent"}, [GONE, CANCELLED, "paid"], "paid", (COMPLETED, 3, False)),
        ({"on_ambiguous": "retry"}, [GONE, GONE, "paid"], "paid", (COMPLETED, 3, True)),
        (
            {"support": "idempotent"},
            [GONE, EffectRejected("no funds")],
            ["EffectRejected", "no funds", None],
            (FAILED, 2, False),
        ),
    ],
    ids=["idempotent", "retry", "idempotent-rejected"],
)
@pytest.mark.parametrize("retry", [None, RETRY], ids=["plain", "retries"])
def test_a_repeat_settles_doubt_where_it_may(
    tmp_path: Path, options: Any, sends: list[Any], result: Any, after: Any, retry: Any
) -> None:
    bank = Bank(*sends)

    async def main() -> None:
        paying = Paying(tmp_path, bank, retry=retry, **options)
        assert await paying.pay() == result
        assert told(await paying.receipt()) == after
        rows = [(row.step_id, row.attempt) for row in await operations(paying.app)]
        delays = 0 if retry is None else after[1] - 1
        assert rows == [*[("call.1.retry", 1)] * delays, ("call", 1 + delays)]

    run(main())
    assert bank.keys == [KEY] * after[1]


@pytest.mark.parametrize("options", [{"support": "idempotent"}, {"on_ambiguous": "retry"}])
@pytest.mark.parametrize(("retry", "most"), [(None, 5), (RETRY, 3)], ids=["plain", "retries"])
def test_repeats_without_an_answer_end_with_a_person(
    tmp_path: Path, options: Any, retry: Any, most: int
) -> None:
    bank = Bank(*[GONE] * 9)

    async def main() -> None:
        paying = Paying(tmp_path, bank, retry=retry, **options)
        await _park(paying)
        assert told(await paying.receipt()) == (AMBIGUOUS, most, "support" not in options)
        await paying.settle(Landed("said so"))
        assert await paying.pay() == "said so"

    run(main())
    assert bank.sent == most


@pytest.mark.parametrize(
    ("sends", "options"),
    [
        ([EffectNotSent("offline")] * 2, {}),
        ([OSError("dns")] * 2, {"not_sent": OSError}),
        ([GONE] * 2, {"support": "idempotent"}),
    ],
    ids=["not-sent", "not-sent-type", "idempotent"],
)
def test_the_rest_of_a_delay_is_waited_and_tries_are_not_counted_anew(
    tmp_path: Path, sends: list[Any], options: Any
) -> None:
    bank = Bank(*sends, "paid")

    async def main() -> None:
        first = Paying(tmp_path, bank, retry=RETRY, **options)
        async with first.app:
            await first.app.start(first.function, run_id=RUN)
            await first.clock.until_sleeping()
            (whole,) = first.clock.sleeping
            first.clock.advance(whole / 2)
        second = Paying(tmp_path, bank, retry=RETRY, clock=first.clock, **options)
        async with second.app:
            await second.clock.until_sleeping()
            assert list(second.clock.sleeping) == [pytest.approx(whole / 2)]
        assert await second.pay() == "paid"
        rows = [(row.step_id, row.attempt) for row in await operations(second.app)]
        assert rows == [("call.1.retry", 1), ("call.1.retry", 1), ("call", 3)]
        assert told(await second.receipt()) == (COMPLETED, 3, False)

    run(main())


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (GONE, {}),
        (EffectRejected("no funds"), {}),
        (OSError("402"), {"rejected": OSError}),
        (OSError("402"), {"rejected": OSError, "support": "idempotent"}),
        (GONE, {"on_ambiguous": "tell"}),
    ],
    ids=["doubt", "rejected", "type-rejected", "idempotent-rejected", "told"],
)
def test_retries_do_not_repeat_what_may_have_been_applied_or_was_refused(
    tmp_path: Path, said: Exception, options: Any
) -> None:
    bank = Bank(said, "again")

    async def main() -> None:
        paying = Paying(tmp_path, bank, retry=RETRY, **options)
        if said is GONE and not options:
            await _park(paying)
        else:
            assert (await paying.pay())[0] in {"EffectRejected", "OSError", "EffectAmbiguous"}
        assert "call.1.retry" not in {row.step_id for row in await operations(paying.app)}

    run(main())
    assert bank.sent == 1


def test_a_policy_that_names_a_refusal_tries_it_again(tmp_path: Path) -> None:
    async def main() -> None:
        retry = RetryPolicy(attempts=2, retry_on=OSError)
        bank = Bank(OSError("busy"), "paid")
        paying = Paying(tmp_path, bank, rejected=OSError, retry=retry)
        assert await paying.pay() == "paid"

    run(main())


@pytest.mark.parametrize(
    ("answers", "sends", "result", "after", "seconds"),
    [
        ([Landed("found")], [GONE], "found", (COMPLETED, 1, False), 0),
        ([NeverWill("void")], [GONE, "paid"], "paid", (COMPLETED, 2, False), 0),
        ([Unknown(), Landed("found")], [GONE], "found", (COMPLETED, 1, False), 0),
        ([NotYet(), NotYet()], [TimeoutError(), "paid"], "paid", (COMPLETED, 2, False), 5),
    ],
    ids=["landed", "never-will", "unknown-once", "not-yet"],
)
def test_a_target_that_can_be_asked_settles_it(
    tmp_path: Path, answers: list[Any], sends: list[Any], result: Any, after: Any, seconds: float
) -> None:
    bank = Bank(*sends, answers=answers)

    async def main() -> None:
        paying = Paying(
            tmp_path, bank, support="outcome_queryable", timeout_seconds=60, settle_seconds=5
        )
        assert await paying.pay() == result
        assert told(await paying.receipt()) == after
        assert paying.clock.monotonic() >= seconds
        assert paying.counted("reconciliation_succeeded") == 1

    run(main())
    assert (bank.sent, bank.asked) == (after[1], len(answers))


def test_a_target_that_cannot_say_is_asked_three_times_and_then_a_person(tmp_path: Path) -> None:
    bank = Bank(GONE, answers=[Unknown("busy"), ConnectionError("down"), "no answer", Unknown()])

    async def main() -> None:
        paying = Paying(tmp_path, bank, support="outcome_queryable", timeout_seconds=60)
        async with paying.app:
            handle = await paying.app.start(paying.function, run_id=RUN)
            with pytest.raises(RunNeedsAttention, match=r"could not say.*be asked again later"):
                await in_time(paying.clock, handle.result())
            assert bank.asked == 2
            assert 5.0 <= paying.clock.monotonic() < 6.0
            # The run does not wait any longer, and its worker goes on asking.
            paying.clock.advance(20.0)
            await until(lambda: paying.counted("reconciliation_failed") == 1)
        receipt = await paying.receipt()
        assert (told(receipt), receipt.exhausted) == ((AMBIGUOUS, 1, False), True)
        await paying.settle(NeverWill("no trace"))
        bank.sends.append("paid")
        assert await paying.pay() == "paid"

    run(main())
    assert (bank.sent, bank.asked) == (2, 3)


def test_a_key_that_the_target_has_forgotten_makes_no_repeat_harmless(tmp_path: Path) -> None:
    bank = Bank(asyncio.Event(), "again")

    async def main() -> None:
        paying = Paying(tmp_path, bank, support="idempotent", key_valid_for_seconds=3600)
        await paying.cut_short()
        paying.clock.advance(3601)
        await _park(paying)
        assert told(await paying.receipt()) == (AMBIGUOUS, 1, False)

    run(main())
    assert bank.sent == 1


def test_other_arguments_at_the_same_place_send_nothing(tmp_path: Path) -> None:
    bank = Bank(asyncio.Event(), "again")

    async def main() -> None:
        paying = Paying(tmp_path, bank, support="idempotent")
        await paying.cut_short()
        paying.cents = 6
        with pytest.raises(RunNeedsAttention, match="begun with other arguments") as parked:
            await paying.pay()
        assert parked.value.code == "EffectConflict"
        paying.cents = 5
        async with paying.app.connect():
            await paying.app.resume(RUN)
        assert await paying.pay() == "again"

    run(main())
    assert bank.sent == 2


def test_an_attempt_that_takes_too_long_is_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        paying = Paying(tmp_path, Bank(asyncio.Event()), timeout_seconds=0.01)
        assert "TimeoutError" in await _park(paying)

    run(main())
