"""What is counted and what is written of each outcome, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure.effects.answer import Landed, NeverWill, Unknown
from perdure.effects.audit import AUDIT_KEYS, allowed
from perdure.effects.support import EffectPolicy
from perdure.errors import EffectAmbiguous, EffectRejected
from perdure.observe import COUNTERS
from tests.harness import run
from tests.receipts import ASK, IDEMPOTENT, KEY, QUERYABLE, RETRY, Bank, answering, shop

LOST = ConnectionResetError("token=s3cret")

FIRST, REPLAY, DOUBT = "first_execution", "replay_suppressed", "ambiguous"
SETTLED, GIVEN_UP = "reconciliation_succeeded", "reconciliation_failed"
FLAGS = ("first_execution", "replay_suppressed")
FLAGS += ("reconciliation_required", "reconciliation_exhausted", "residual_duplicate_risk")

CASES: dict[str, tuple[EffectPolicy, Bank, dict[str, int], list[tuple[str, str]]]] = {
    "done": (ASK, Bank(1), {FIRST: 1}, [("completed", "1----")]),
    "refused": (ASK, Bank(EffectRejected("no")), {FIRST: 1}, [("failed", "1----")]),
    "lost": (ASK, Bank(LOST), {FIRST: 1, DOUBT: 1}, [("ambiguous", "1-1--")]),
    "repeated under its key": (
        IDEMPOTENT,
        Bank(LOST, 1),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("completed", "-----")],
    ),
    "repeated without one": (
        RETRY,
        Bank(LOST, 1),
        {FIRST: 1, DOUBT: 1},
        [("ambiguous", "1-1--"), ("completed", "----1")],
    ),
    "found at the target": (
        QUERYABLE,
        answering(Landed(1)),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("completed", "-----")],
    ),
    "ruled out by the target": (
        QUERYABLE,
        Bank(LOST, 1, answers=[NeverWill()]),
        {FIRST: 1, DOUBT: 1, SETTLED: 1},
        [("ambiguous", "1-1--"), ("failed", "-----"), ("completed", "-----")],
    ),
    "asked in vain": (
        QUERYABLE,
        answering(Unknown("password")),
        {FIRST: 1, DOUBT: 1, GIVEN_UP: 1},
        [("ambiguous", "1-1--"), ("ambiguous", "--11-")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_outcome_is_counted_and_written(tmp_path: Path, case: str) -> None:
    policy, bank, counts, records = CASES[case]

    async def main() -> None:
        async with shop(tmp_path) as it:
            with contextlib.suppress(EffectAmbiguous, EffectRejected):
                await it.pay_in_time(bank, policy, arguments={"card": "4111"})
            seen = {
                name.removeprefix("perdure_side_effect_").removesuffix("_total"): count
                for name, count in it.store.observer.counts.items()
                if count
            }
            assert seen == counts
            assert [_told(record) for record in it.audit.records] == records
            for record in it.audit.records:
                assert {key: type(value) for key, value in record.items()} == AUDIT_KEYS
                assert (record["operation_key"], record["operation_target_ref"]) == (KEY, "bank")
                assert record["operation_support"] == policy.support.value
                assert "s3cret" not in str(record)

    run(main())


def _told(record: Mapping[str, Any]) -> tuple[str, str]:
    flags = "".join("1" if record[f"operation_{flag}"] else "-" for flag in FLAGS)
    return record["operation_state"], flags


def test_an_answer_from_the_receipt_is_counted_and_written(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank(1)
        async with shop(tmp_path) as it:
            for _ in range(2):
                await it.pay(bank)
            assert (it.counted(FIRST), it.counted(REPLAY)) == (1, 1)
            assert _told(it.audit.records[-1]) == ("completed", "-1---")

    run(main())


def test_a_record_holds_what_the_list_allows_and_nothing_else() -> None:
    right = {key: kind() for key, kind in AUDIT_KEYS.items()}
    assert len(right) == 9
    assert allowed(right) == right
    wrong = {"operation_key": 1, "operation_first_execution": 1, "operation_state": True}
    assert allowed({**wrong, "arguments": "4111", "payload": "secret"}) == {}


def test_a_sink_that_fails_changes_nothing(tmp_path: Path) -> None:
    class Broken:
        async def write(self, facts: Mapping[str, Any]) -> None:
            raise OSError("no room")

    async def main() -> None:
        async with shop(tmp_path) as it:
            it.store._audit = Broken()
            assert await it.pay(Bank("done")) == "done"

    run(main())


def test_every_counter_is_in_the_table(tmp_path: Path) -> None:
    names = {FIRST, REPLAY, DOUBT, SETTLED, GIVEN_UP}
    assert {f"perdure_side_effect_{name}_total" for name in names} <= set(COUNTERS)
