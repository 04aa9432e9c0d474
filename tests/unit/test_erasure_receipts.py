from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import RunState
from perdure.effects.answer import Landed
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import RunEnd
from perdure.errors import (
    EffectErased,
    EffectRejected,
    NotErasable,
)
from perdure.storage.sqlite import erasure
from tests.erasing import WHO, effect
from tests.harness import RUN, run, sql, stored
from tests.receipts import KEY, RETRY, Bank, Shop, doubtful, shop


@pytest.mark.parametrize("move", [None, Move.DOUBT])
def test_effects_that_nobody_settled_stand_in_the_way(tmp_path: Path, move: Move | None) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await effect(it, it.fence, "settled", Move.COMPLETE, "1")
            identity = await effect(it, it.fence, "open", move, "no reply")
            other = await it.begin("run-2")
            await effect(it, other, "open", None)
            await it.store.end_run(it.fence, RunEnd(RunState.CANCELLED))
            for erase in (it.store.erase_run, it.store.erase_receipts):
                with pytest.raises(NotErasable, match="settle them first") as refused:
                    await erase(RUN, **WHO)
                assert refused.value.operation_keys == [identity.operation_key]
            row = await it.store.read_run(RUN)
            assert row is not None
            assert row.tombstone is None
            assert len(await it.store.list_receipts(ambiguous_only=False, limit=9)) == 3

    run(main())


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


def test_an_effect_that_is_erased_under_way_is_not_sent_either(tmp_path: Path) -> None:
    """Settled and erased by others between a look at the receipt and the repeat."""

    async def main() -> None:
        async with shop(tmp_path) as it:
            receipt = await doubtful(it, RETRY)
            version = receipt.version
            await it.store.settle(KEY, Landed("MARK"), expect_version=version, **WHO)
            assert sql(tmp_path, "SELECT count(*) FROM decisions") == [(1,)]
            await it.store.erase("invoice-17", **WHO)
            assert sql(tmp_path, "SELECT count(*) FROM decisions") == [(0,)]
            storage = it.store._storage
            identity = OperationIdentity("invoice-17", "charge", "bank")
            claim = EffectClaim(
                operation_key=identity.operation_key,
                identity=identity,
                support=SideEffectSupport.AT_LEAST_ONCE,
                arguments_sha256=receipt.arguments_sha256,
                owner=Owner(await storage.register_worker("w", 60.0)),
                settle_seconds=0.0,
                resend_after=None,
            )
            with pytest.raises(EffectErased):
                await storage.send_again(receipt, claim, unknown=True, risk=True)
            late = Settlement(operation_key=KEY, attempt=1, generation=0, move=Move.COMPLETE)
            with pytest.raises(EffectErased):
                await storage.settle_effect(late)

    run(main())


def test_receipts_are_erased_alone_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "_ROWS", 3)

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
