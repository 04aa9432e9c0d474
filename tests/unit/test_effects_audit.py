"""What is counted and what is written of each outcome, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure.effects.answer import Decision, Landed, NeverWill, NotYet, SendAgain, Unknown
from perdure.effects.audit import AUDIT_KEYS, allowed
from perdure.effects.support import EffectPolicy
from perdure.errors import (
    EffectAmbiguous,
    EffectConflict,
    EffectError,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    StorageError,
)
from perdure.observe import COUNTERS, totals
from tests.harness import run, sql
from tests.receipts import (
    ASK,
    IDEMPOTENT,
    KEY,
    QUERYABLE,
    RETRY,
    TELL,
    Bank,
    Shop,
    answering,
    shop,
)

SECRET = "s3cret"
CARD = {"card": SECRET}
LOST = ConnectionResetError(SECRET)
HASTY = EffectPolicy(timeout_seconds=0.01)

FIRST, REPLAY, DOUBT = "first_execution", "replay_suppressed", "ambiguous"
SETTLED, GIVEN_UP = "reconciliation_succeeded", "reconciliation_failed"
FLAGS = ("first_execution", "replay_suppressed")
FLAGS += ("reconciliation_required", "reconciliation_exhausted", "residual_duplicate_risk")


def forget(it: Shop) -> None:
    it.store.observer.counts.clear()
    it.audit.records.clear()


def paid(*sends: Any, answers: list[Any] | None = None) -> Callable[..., Awaitable[None]]:
    """Return a play in which one caller pays, however that ends."""

    async def play(it: Shop, policy: EffectPolicy) -> None:
        with suppress(EffectError):
            bank = Bank(*sends, answers=answers)
            await it.pay_in_time(bank, policy, arguments=CARD)

    return play


async def unknown_until_exhausted(it: Shop, policy: EffectPolicy) -> None:
    bank = answering(Unknown(SECRET))
    for _ in range(2):
        with pytest.raises(EffectAmbiguous):
            await it.pay_in_time(bank, policy, arguments=CARD)
        it.clock.advance(20.0)


async def paid_twice(it: Shop, policy: EffectPolicy) -> None:
    bank = Bank(SECRET)
    await it.pay(bank, policy, arguments=CARD)
    forget(it)
    assert await it.pay(bank, policy, arguments=CARD) == SECRET


async def cancelled(it: Shop, policy: EffectPolicy) -> None:
    bank = Bank(asyncio.Event())
    task = asyncio.create_task(it.pay(bank, policy, arguments=CARD))
    await bank.reached.wait()
    task.cancel()
    await asyncio.wait([task])


async def asked_for_while_another_pays(it: Shop, policy: EffectPolicy) -> None:
    async with beside_another(it, policy):
        with pytest.raises(EffectInProgress):
            await it.pay(Bank(), policy, arguments=CARD)


async def asked_for_after_its_worker_died(it: Shop, policy: EffectPolicy) -> None:
    async with beside_another(it, policy, dead=True):
        with pytest.raises(EffectAmbiguous):
            await it.pay(Bank(), policy, arguments=CARD)


async def listed_after_its_worker_died(it: Shop, policy: EffectPolicy) -> None:
    async with beside_another(it, policy, dead=True):
        await it.store.list()


@asynccontextmanager
async def beside_another(
    it: Shop, policy: EffectPolicy, *, dead: bool = False
) -> AsyncGenerator[None]:
    """Go on while another process sends the effect, or died when it did."""
    async with shop(it.folder, clock=it.clock) as other:
        bank = Bank(asyncio.Event())
        task = asyncio.create_task(other.pay(bank, policy, arguments=CARD))
        await bank.reached.wait()
        if dead:
            disown(other)
        yield
        task.cancel()
        await asyncio.wait([task])


def disown(it: Shop) -> None:
    holder = it.store.owner().holder
    sql(it.folder, "UPDATE workers SET gone = 2 WHERE holder = ?", holder)


async def asked_for_by_who_owns_nothing(it: Shop, policy: EffectPolicy) -> None:
    await it.store._ready()
    disown(it)
    with pytest.raises(StorageError, match="lost its lease 5 times"):
        await it.pay(Bank(), policy, arguments=CARD)


async def asked_for_with_other_arguments(it: Shop, policy: EffectPolicy) -> None:
    await it.pay(Bank(SECRET), policy, arguments=CARD)
    forget(it)
    with pytest.raises(EffectConflict):
        await it.pay(Bank(SECRET), policy, arguments={"card": "another"})


def decided(decision: Decision) -> Callable[..., Awaitable[None]]:
    """Return a play in which a person settles what nobody knows."""

    async def play(it: Shop, policy: EffectPolicy) -> None:
        await paid(LOST)(it, policy)
        version = (await it.receipt()).version
        forget(it)
        await it.store.settle(KEY, decision, by=SECRET, why=SECRET, expect_version=version)

    return play


class Case(NamedTuple):
    """An outcome: what is counted, and the state and the flags of each record."""

    policy: EffectPolicy
    play: Callable[..., Awaitable[None]]
    counts: dict[str, int]
    records: list[tuple[str, str]]


CASES: dict[str, Case] = {
    "applied": Case(ASK, paid(SECRET), {FIRST: 1}, [("completed", "1----")]),
    "answered from its receipt": Case(ASK, paid_twice, {REPLAY: 1}, [("completed", "-1---")]),
    "refused": Case(ASK, paid(EffectRejected(SECRET)), {FIRST: 1}, [("failed", "1----")]),
    "not sent": Case(ASK, paid(EffectNotSent(SECRET)), {FIRST: 1}, [("failed", "1----")]),
    "in progress": Case(ASK, asked_for_while_another_pays, {}, []),
    "in conflict": Case(ASK, asked_for_with_other_arguments, {}, []),
    "disowned": Case(ASK, asked_for_by_who_owns_nothing, {"perdure_lease_fencing_rejected": 5}, []),
    "no reply": Case(ASK, paid(LOST), {FIRST: 1, DOUBT: 1}, [("ambiguous", "1-1-1")]),
    "no reply, and told so": Case(TELL, paid(LOST), {FIRST: 1, DOUBT: 1}, [("ambiguous", "1-1-1")]),
    "no reply in time": Case(
        HASTY, paid(asyncio.Event()), {FIRST: 1, DOUBT: 1}, [("ambiguous", "1-1-1")]
    ),
    "cancelled": Case(ASK, cancelled, {FIRST: 1, DOUBT: 1}, [("ambiguous", "1-1-1")]),
    "its worker died": Case(
        ASK, asked_for_after_its_worker_died, {DOUBT: 1}, [("ambiguous", "1-1-1")]
    ),
    "its worker died, and somebody lists it": Case(
        ASK, listed_after_its_worker_died, {DOUBT: 1}, [("ambiguous", "1-1-1")]
    ),
    "refused under its key": Case(
        IDEMPOTENT,
        paid(LOST, EffectRejected(SECRET)),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("failed", "-----")],
    ),
    "repeated under its key": Case(
        IDEMPOTENT,
        paid(LOST, SECRET),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("completed", "-----")],
    ),
    "repeated at a risk": Case(
        RETRY,
        paid(LOST, SECRET),
        {FIRST: 1, DOUBT: 1},
        [("ambiguous", "1-1-1"), ("completed", "----1")],
    ),
    "landed": Case(
        QUERYABLE,
        paid(LOST, answers=[Landed(SECRET)]),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("completed", "-----")],
    ),
    "never will land": Case(
        QUERYABLE,
        paid(LOST, SECRET, answers=[NeverWill(SECRET)]),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("failed", "-----"), ("completed", "-----")],
    ),
    "not landed, and sent again": Case(
        QUERYABLE,
        paid(LOST, SECRET, answers=[NotYet(), NotYet()]),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("completed", "-----")],
    ),
    "nobody can say": Case(
        QUERYABLE,
        unknown_until_exhausted,
        {FIRST: 1, DOUBT: 1, GIVEN_UP: 1},
        [("ambiguous", "1-1--"), ("ambiguous", "--11-")],
    ),
    "a person: it landed": Case(
        ASK, decided(Landed(SECRET)), {SETTLED: 1}, [("completed", "-----")]
    ),
    "a person: it did not": Case(
        ASK, decided(NeverWill(SECRET)), {SETTLED: 1}, [("failed", "-----")]
    ),
    "a person: send it again": Case(ASK, decided(SendAgain()), {SETTLED: 1}, [("failed", "----1")]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_outcome_is_counted_and_written(tmp_path: Path, case: Case) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await case.play(it, case.policy)
            assert _counted(it) == case.counts
            assert set(it.store.observer.counts) <= set(COUNTERS)
            assert [_told(record) for record in it.audit.records] == case.records
            for record in it.audit.records:
                assert {key: type(value) for key, value in record.items()} == AUDIT_KEYS
                assert (record["operation_key"], record["operation_target_ref"]) == (KEY, "bank")
                assert record["operation_support"] == case.policy.support.value
                assert SECRET not in str(record)

    run(main())


def _counted(it: Shop) -> dict[str, int]:
    """Return every counter that moved."""
    return {
        name.removeprefix("perdure_side_effect_").removesuffix("_total"): count
        for name, count in totals([it.store.observer]).items()
        if count
    }


def _told(record: Mapping[str, Any]) -> tuple[str, str]:
    flags = "".join("1" if record[f"operation_{flag}"] else "-" for flag in FLAGS)
    return record["operation_state"], flags


def test_a_record_holds_what_the_list_allows_and_nothing_else() -> None:
    right = {key: kind() for key, kind in AUDIT_KEYS.items()}
    assert len(right) == 9
    assert allowed(right) == right
    wrong = {"operation_key": 1, "operation_first_execution": 1, "operation_state": True}
    assert allowed({**wrong, "arguments": "4111", "payload": "secret"}) == {}
