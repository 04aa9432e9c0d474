"""What an attempt says of its effect, and where that is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Context,
    EffectAmbiguous,
    EffectNotSent,
    EffectRejected,
    OperationFailed,
    RunNeedsAttention,
    RunState,
)
from perdure.declaration import EffectDeclaration, Reported, Verdict
from perdure.effects.answer import Landed
from perdure.effects.receipt import Move, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import LeaseLost
from perdure.fence import Fence
from perdure.journal import Failure, Invocation, OperationKind, Outcome, Success
from perdure.journal.store import NewRecord
from tests.harness import RUN, Stored, app_on, keys, once, operations, run, sql, stored
from tests.paying import IDENTITY, KEY, Paying, perform, told
from tests.receipts import Bank

pytestmark = pytest.mark.usefixtures("storage")

FAILED, COMPLETED, AMBIGUOUS = ReceiptState.FAILED, ReceiptState.COMPLETED, ReceiptState.AMBIGUOUS

NO_DATA = (
    "charge: result.when[0] is an object, which cannot be stored: convert it to a value of a known"
    " type, or to an enum, dataclass or model"
)


class BankError(Exception):
    """What a bank's client raises."""


@pytest.mark.parametrize(
    ("said", "options", "result", "state"),
    [
        ({"receipt": 1}, {}, {"receipt": 1}, COMPLETED),
        (EffectRejected("no funds"), {}, ["EffectRejected", "no funds", None], FAILED),
        (EffectNotSent("offline"), {}, ["EffectNotSent", "offline", None], FAILED),
        (BankError("402"), {"rejected": BankError}, ["BankError", "402", None], FAILED),
        (BankError("dns"), {"not_sent": (OSError, BankError)}, ["BankError", "dns", None], FAILED),
        (
            {"when": [object()]},
            {},
            ["InvalidPayload", NO_DATA, None],
            COMPLETED,
        ),
    ],
    ids=["applied", "rejected", "not-sent", "type-rejected", "type-not-sent", "no-data"],
)
def test_what_is_known_is_recorded_along_with_the_receipt_and_counted_once(
    tmp_path: Path, said: Any, options: Any, result: Any, state: ReceiptState
) -> None:
    bank = Bank(said)

    async def main() -> None:
        paying = Paying(tmp_path, bank, **options)
        assert await paying.pay() == result
        receipt = await paying.receipt()
        assert told(receipt) == (state, 1, False)
        # The record has the answer.
        assert (receipt.operation_key, receipt.payload) == (KEY, None)
        assert receipt.handler_id == "charge"
        assert len(await operations(paying.app)) == 1
        assert (paying.counted("first_execution"), len(paying.audit.records)) == (1, 1)

    run(main())
    assert bank.sent == 1


def test_a_replay_sends_counts_and_audits_nothing(tmp_path: Path) -> None:
    bank = Bank("paid")

    async def main() -> None:
        assert await Paying(tmp_path, bank).pay() == "paid"
        sql(tmp_path, "UPDATE runs SET state = 'failed'")
        again = Paying(tmp_path, bank)
        async with again.app.connect():
            await again.app.resume(RUN)
        assert await again.pay() == "paid"
        counts = again.app.observer.counts
        assert counts["perdure_operation_replayed_total"] == 1
        assert counts["perdure_operation_executed_total"] == 0
        assert [name for name in counts if "side_effect" in name and counts[name]] == []
        assert again.audit.records == []

    run(main())
    assert bank.sent == 1


@pytest.mark.parametrize(
    ("arguments", "state"),
    [((1, 2, 3), FAILED), ((1,), AMBIGUOUS)],
    ids=["of-the-call", "of-the-code"],
)
def test_arguments_that_do_not_fit_sent_nothing_unlike_a_type_error_in_the_code(
    tmp_path: Path, arguments: tuple[int, ...], state: ReceiptState
) -> None:
    async def main() -> None:
        paying = Paying(tmp_path, Bank(TypeError("of the code")), on_ambiguous="tell")

        @paying.app.run(version=1)
        async def calling(context: Context) -> str:
            with pytest.raises(OperationFailed) as failed:
                await context.call(paying.charge, *arguments)
            return failed.value.code

        paying.function = calling
        assert await paying.pay() == ("TypeError" if state is FAILED else "EffectAmbiguous")
        assert told(await paying.receipt())[0] is state

    run(main())


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.APPLIED, COMPLETED),
        (Verdict.REFUSED, FAILED),
        (Verdict.NOT_SENT, FAILED),
        (Verdict.UNKNOWN, AMBIGUOUS),
    ],
)
@pytest.mark.parametrize("outcome", [Success(b'"well"'), Failure("Odd", message="not well")])
def test_a_handler_that_reports_has_its_outcome_recorded_and_believed(
    tmp_path: Path, verdict: Verdict, state: ReceiptState, outcome: Outcome
) -> None:
    app = app_on(tmp_path)
    calls: list[int] = []

    def report() -> Reported:
        calls.append(1)
        return Reported(outcome, verdict)

    @app.run(version=1)
    async def work(context: Context) -> None:
        assert await perform(context, report, EffectDeclaration()) == outcome

    run(once(app, work))
    assert calls == [1]
    assert sql(tmp_path, "SELECT state FROM receipts") == [(state.value,)]
    assert run(keys(app)) == [("tool", 1)]


@pytest.mark.parametrize(
    "raised",
    [ConnectionResetError("gone"), EffectAmbiguous(KEY, "bank", "said so"), SystemExit(3)],
    ids=["exception", "doubt", "exit"],
)
def test_who_is_told_gets_the_same_failure_now_and_on_replay(
    tmp_path: Path, raised: BaseException
) -> None:
    bank = Bank(raised)

    async def main() -> None:
        paying = Paying(tmp_path, bank, on_ambiguous="tell")
        first = await paying.pay()
        code, message, data = first
        assert code == "EffectAmbiguous"
        assert "may have been applied" in message
        assert (data["operation_key"], data["target"]) == (KEY, "bank")
        sql(tmp_path, "UPDATE runs SET state = 'failed'")
        async with paying.app.connect():
            await paying.app.resume(RUN)
        assert await paying.pay() == first
        assert told(await paying.receipt()) == (AMBIGUOUS, 1, False)
        assert paying.counted("ambiguous") == 1

    run(main())
    assert bank.sent == 1


def test_an_answer_of_the_target_becomes_an_output_of_the_operation(tmp_path: Path) -> None:
    def gone() -> Outcome:
        raise ConnectionResetError("gone")

    async def find(operation: Any) -> Landed:
        return Landed({"id": 17})

    declared = EffectDeclaration(
        policy=EffectPolicy(
            target="bank", support=SideEffectSupport.OUTCOME_QUERYABLE, timeout_seconds=60
        ),
        lookup=find,
        output_of=lambda payload: b'{"wrapped": ' + payload + b"}",
    )
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        outcome = await perform(context, gone, declared)
        assert outcome == Success(b'{"wrapped": {"id":17}}')

    run(once(app, work))


def test_what_is_prepared_before_leaves_no_receipt_when_it_fails(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    seen: list[str] = []

    @asynccontextmanager
    async def prepared() -> AsyncGenerator[None]:
        seen.append("prepare")
        if len(seen) == 1:
            raise ConnectionError("no server")
        yield
        seen.append("over")

    def applied() -> Outcome:
        seen.append("apply")
        return Success(b"1")

    @app.run(version=1)
    async def work(context: Context) -> None:
        outcome = await perform(context, applied, EffectDeclaration(prepare=prepared))
        assert isinstance(outcome, Failure)
        assert outcome.error_name == "ConnectionError"
        assert sql(tmp_path, "SELECT count(*) FROM receipts") == [(0,)]
        side = context.branch("side")
        assert await perform(side, applied, EffectDeclaration(prepare=prepared)) == Success(b"1")

    run(once(app, work))
    assert seen == ["prepare", "prepare", "apply", "over"]


async def _in_flight(it: Stored) -> tuple[Settlement, NewRecord]:
    claim = EffectClaim(
        operation_key=KEY,
        identity=IDENTITY,
        support=SideEffectSupport.AT_LEAST_ONCE,
        arguments_sha256=b"5",
        owner=Owner(it.fence.holder, it.fence.generation),
        settle_seconds=0.0,
        resend_after=None,
    )
    await it.store.claim_effect(claim)
    invocation = Invocation(RUN, "call", 1, OperationKind.TOOL_CALL, "charge", b"5")
    record = NewRecord(invocation, b"d" * 32, Success(b"1"), 1, 10.0, 11.0, False, (), ())
    settlement = Settlement(
        operation_key=KEY, attempt=1, generation=1, move=Move.COMPLETE, stopped=True
    )
    return settlement, record


@pytest.mark.parametrize("lost", ["fence", "receipt"])
def test_record_and_receipt_are_both_written_or_neither(tmp_path: Path, lost: str) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            settlement, record = await _in_flight(it)
            if lost == "fence":
                stolen = Fence(RUN, it.fence.holder, 2)
                with pytest.raises(LeaseLost):
                    await it.store.settle_record(stolen, settlement, record)
            else:
                await it.store.settle_effect(settlement)
                second = await it.store.settle_record(it.fence, settlement, record)
                assert second[1] is False
            state = "in_flight" if lost == "fence" else "completed"
            assert sql(tmp_path, "SELECT state FROM receipts") == [(state,)]
            assert await it.store.list_operations(RUN) == []

    run(main())


def test_a_receipt_whose_record_is_gone_is_not_answered_from(tmp_path: Path) -> None:
    bank = Bank("paid")

    async def main() -> None:
        assert await Paying(tmp_path, bank).pay() == "paid"
        sql(tmp_path, "DELETE FROM records")
        sql(tmp_path, "UPDATE runs SET state = 'failed'")
        paying = Paying(tmp_path, bank)
        async with paying.app.connect():
            await paying.app.resume(RUN)
        with pytest.raises(RunNeedsAttention, match="restore the database from a backup"):
            await paying.pay()
        assert await paying.state() is RunState.NEEDS_ATTENTION

    run(main())
    assert bank.sent == 1
