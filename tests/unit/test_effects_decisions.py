"""What people decide is kept, whoever decides later, and frees the run that waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.effects.answer import Landed, NeverWill, SendAgain
from perdure.effects.receipt import Move, ReceiptState
from perdure.effects.store import Settlement
from perdure.engine.store import RunProblem
from perdure.errors import EffectAmbiguous, StaleDecision
from tests.harness import run, sql
from tests.receipts import KEY, Bank, Shop, receipts, shop

LOST = ConnectionResetError("lost")


async def doubt(it: Shop) -> None:
    """Leave an attempt of which nobody knows."""
    with pytest.raises(EffectAmbiguous):
        await it.pay(Bank(LOST))


def park(folder: Path, code: str, state: str = "needs_attention") -> None:
    """Insert a run of the same id as the effect's."""
    problem = msgspec.json.encode(RunProblem(code, code, "why"))
    sql(
        folder,
        "INSERT INTO runs (run_id, function, version, state, generation, created_at, finished_at,"
        " input_sha256, input, problem) VALUES ('invoice-17', 'f', 1, ?, 1, 0, 9, x'', x'', ?)",
        state,
        problem,
    )


def test_a_later_decision_replaces_none_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            for by, decision in (("ada", SendAgain()), ("bob", NeverWill()), ("eve", Landed(3))):
                await doubt(it)
                version = (await it.receipt()).version
                await it.store.settle(KEY, decision, by=by, why="so", expect_version=version)
                it.clock.advance(1.0)
            rows = await it.store.decisions(KEY)
            told = [(row.decision, row.attempt, row.version, row.decided_by) for row in rows]
            assert told == [
                ("send_again", 1, 2, "ada"),
                ("never_will", 2, 5, "bob"),
                ("landed", 3, 8, "eve"),
            ]
            assert rows[1].decided_at == rows[0].decided_at + 1.0
            assert [record["operation_state"] for record in it.audit.records] == [
                *["ambiguous", "failed"] * 2,
                *["ambiguous", "completed"],
            ]
            sql(tmp_path, "DELETE FROM receipts")
            assert await it.store.decisions(KEY) == []

    run(main())


@pytest.mark.parametrize(
    ("code", "state", "after"),
    [
        ("EffectAmbiguous", "needs_attention", ("pending", None, None)),
        ("ReplayMismatch", "needs_attention", ("needs_attention", "why", 9.0)),
        ("EffectAmbiguous", "failed", ("failed", "why", 9.0)),
    ],
)
def test_a_decision_frees_the_run_that_waits_for_it(
    tmp_path: Path, code: str, state: str, after: tuple[Any, ...]
) -> None:
    asked = "SELECT state, json_extract(CAST(problem AS TEXT), '$.message'), finished_at FROM runs"

    async def main() -> None:
        async with shop(tmp_path) as it:
            await doubt(it)
            park(tmp_path, code, state)
            seen = sql(tmp_path, asked)
            with pytest.raises(StaleDecision):
                await it.store.settle(KEY, NeverWill(), by="ada", why="so", expect_version=1)
            assert (sql(tmp_path, asked), await it.store.decisions(KEY)) == (seen, [])
            await it.store.settle(KEY, NeverWill(), by="ada", why="so", expect_version=2)
            assert sql(tmp_path, asked) == [after]

    run(main())


@pytest.mark.parametrize(
    ("stopped", "state"), [(False, "pending"), (True, "needs_attention")], ids=["asked", "attempt"]
)
def test_an_answer_frees_a_run_and_the_end_of_an_attempt_does_not(
    tmp_path: Path, stopped: bool, state: str
) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            receipt, _ = await it.storage.claim_effect(it.claim(await it.owner()))
            park(tmp_path, "EffectAmbiguous")
            move = Settlement(
                operation_key=KEY, attempt=1, generation=0, move=Move.COMPLETE, stopped=stopped
            )
            settled, landed = await it.storage.settle_effect(move)
            assert (settled.state, landed) == (ReceiptState.COMPLETED, True)
            assert sql(tmp_path, "SELECT state FROM runs") == [(state,)]
            assert await it.storage.list_decisions(receipt.operation_key) == []

    run(main())


def test_what_vanished_is_counted_and_audited_once_whoever_looks(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            await it.storage.claim_effect(it.claim(await it.owner()))
            sql(tmp_path, "UPDATE workers SET gone = 2")
        async with shop(tmp_path) as first, shop(tmp_path) as second:
            for each in (first, second, first):
                assert len(await each.store.list(ambiguous_only=True)) == 1
            assert (first.counted("ambiguous"), second.counted("ambiguous")) == (1, 0)
            (record,) = first.audit.records + second.audit.records
            assert record["operation_state"] == "ambiguous"
            assert record["operation_first_execution"]

    run(main())


def test_who_only_looks_takes_no_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await it.store.list()
            await it.store.decisions(KEY)
            assert sql(tmp_path, "SELECT count(*) FROM workers") == [(0,)]
            await doubt(it)
            assert sql(tmp_path, "SELECT count(*) FROM workers") == [(1,)]

    run(main())
