"""What people decide is kept, whoever decides later, and frees the run that waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.effects.answer import Landed, NeverWill, SendAgain
from perdure.errors import EffectAmbiguous
from tests.harness import run, sql
from tests.receipts import KEY, Bank, Shop, receipts, shop

pytestmark = pytest.mark.usefixtures("storage")

LOST = ConnectionResetError("lost")


async def doubt(it: Shop) -> None:
    """Leave an attempt of which nobody knows."""
    with pytest.raises(EffectAmbiguous):
        await it.pay(Bank(LOST))


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
