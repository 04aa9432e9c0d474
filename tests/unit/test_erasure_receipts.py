from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import RunState
from perdure.effects.answer import Landed
from perdure.effects.receipt import Move, ReceiptState
from perdure.engine.store import RunEnd
from perdure.errors import (
    EffectErased,
    EffectRejected,
)
from perdure.storage.postgres import erasure as postgres_erasure
from perdure.storage.sqlite import erasure
from tests.erasing import WHO, effect
from tests.harness import RUN, run, sql, stored
from tests.receipts import KEY, Bank, Shop, shop

pytestmark = pytest.mark.usefixtures("storage")


async def _pay(it: Shop, said: Any) -> None:
    with suppress(EffectRejected):
        await it.pay(Bank(said))


@pytest.mark.parametrize(
    ("said", "state"), [("r-1", "completed"), (EffectRejected("no"), "failed")]
)
def test_an_erased_effect_is_never_sent_again(tmp_path: Path, said: Any, state: str) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            await _pay(it, said)
            assert await it.store.erase("invoice-17", **WHO) == 1
            assert await it.store.list() == []
            bank = Bank("r-2")
            with pytest.raises(EffectErased, match=rf"said '{state}' when ada erased it \(request"):
                await it.pay(bank)
            assert bank.sent == 0
            with pytest.raises(EffectErased):
                await it.store.settle(KEY, Landed(1), expect_version=1, **WHO)
            assert await it.store.erase("invoice-17", **WHO) == 0
        assert sql(
            tmp_path, "SELECT operation_key, state, erased_by, erased_why FROM tombstones"
        ) == [(KEY, state, "ada", "request 17")]

    run(main())


def test_receipts_are_erased_alone_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in (erasure, postgres_erasure):
        monkeypatch.setattr(driver, "_ROWS", 3)

    async def main() -> None:
        async with stored(tmp_path) as it:
            for number in range(7):
                await effect(it, it.fence, f"e{number}", Move.COMPLETE, "1")
            other = await it.begin("run-2")
            await effect(it, other, "kept", Move.COMPLETE, "1")
            await it.store.end_run(it.fence, RunEnd(RunState.COMPLETED, b"1"))
            assert await it.store.erase_receipts(RUN, **WHO) == 7
            (kept,) = await it.store.list_receipts(ambiguous_only=False, limit=9)
            assert (kept.run_id, kept.state) == ("run-2", ReceiptState.COMPLETED)
            assert sql(tmp_path, "SELECT count(*) FROM tombstones") == [(7,)]

    run(main())
