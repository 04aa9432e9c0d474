"""What a watch tells of receipts from look to look, and that nothing escapes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.effects import watch as watching
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Change, Move, Receipt, ReceiptState
from perdure.effects.store import Owner, Settlement
from perdure.effects.watch import Watch
from tests.harness import run, sql
from tests.receipts import Receipts, receipts


class Effects:
    """Effects of one worker, by their numbers, and a watch over them."""

    def __init__(self, it: Receipts, owner: Owner) -> None:
        self.it = it
        self.owner = owner
        self.watch = Watch(it.storage, it.storage.changed, self._nothing)

    async def claim(self, number: int) -> Receipt:
        identity = OperationIdentity(f"run-{number}", "charge", "bank")
        receipt, _ = await self.it.storage.claim_effect(self.it.claim_of(self.owner, identity))
        return receipt

    async def move(self, receipt: Receipt, move: Move, **changes: Any) -> Receipt:
        settled, _ = await self.it.storage.settle_effect(
            Settlement(
                operation_key=receipt.operation_key,
                attempt=receipt.attempt,
                generation=receipt.generation,
                move=move,
                **changes,
            )
        )
        return settled

    async def look(self) -> list[tuple[str, str | None, str]]:
        """Return the run, the state before and the state now of each change."""
        return [_told(change) for change in await self.watch.look()]

    async def _nothing(self) -> None:
        pass


def _told(change: Change) -> tuple[str, str | None, str]:
    before = None if change.before is None else change.before.state.value
    return change.after.run_id, before, change.after.state.value


@asynccontextmanager
async def effects(folder: Path) -> AsyncGenerator[Effects]:
    async with receipts(folder) as it:
        yield Effects(it, await it.owner())


def test_what_begins_and_ends_between_two_looks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_PAGE", 2)

    async def main() -> None:
        async with effects(tmp_path) as it:
            old = [await it.claim(number) for number in range(5)]
            refused = await it.move(old[4], Move.REFUSE)
            assert len(await it.watch.begin()) == 4
            assert await it.look() == []
            new = [await it.claim(number) for number in range(10, 17)]
            for receipt in old[:3] + new:
                await it.move(receipt, Move.COMPLETE, payload=b"1")
            await it.move(await it.claim(4), Move.COMPLETE)
            assert refused.attempt == 1
            assert await it.look() == [
                *[(f"run-{number}", "in_flight", "completed") for number in range(3)],
                ("run-4", "failed", "completed"),
                *[(f"run-{number}", None, "completed") for number in range(10, 17)],
            ]
            assert await it.look() == []

    run(main())


@pytest.mark.parametrize("early", [True, False])
def test_a_proof_that_comes_late_is_told_although_the_effect_is_completed(
    tmp_path: Path, early: bool
) -> None:
    async def main() -> None:
        async with effects(tmp_path) as it:
            if early:
                await it.watch.begin()
            first = await it.claim(1)
            await it.move(first, Move.REFUSE)
            await it.move(await it.claim(1), Move.COMPLETE)
            await (it.watch.look() if early else it.watch.begin())
            await it.move(first, Move.COMPLETE, stopped=True)
            (change,) = await it.watch.look()
            assert change.before is not None
            assert not change.before.residual_duplicate_risk
            assert change.after.residual_duplicate_risk
            assert change.after.payload is None

    run(main())


def test_a_number_that_an_erasure_freed_hides_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with effects(tmp_path) as it:
            for number in range(3):
                await it.move(await it.claim(number), Move.COMPLETE)
            await it.watch.begin()
            sql(tmp_path, "DELETE FROM receipts WHERE receipt_number > 1")
            assert await it.look() == []
            await it.claim(9)
            assert await it.look() == [("run-9", None, "in_flight")]

    run(main())


def test_what_is_open_is_followed_however_much_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_MOST_KNOWN", 2)

    async def main() -> None:
        async with effects(tmp_path) as it:
            is_open = await it.claim(0)
            for number in range(1, 5):
                await it.move(await it.claim(number), Move.REFUSE)
            (seen,) = await it.watch.begin()
            assert (seen.run_id, seen.state) == ("run-0", ReceiptState.IN_FLIGHT)
            for number in range(5, 9):
                await it.move(await it.claim(number), Move.REFUSE)
            assert len(await it.look()) == 4
            assert len(it.watch._known) == 2
            await it.move(is_open, Move.DOUBT)
            assert await it.look() == [("run-0", "in_flight", "ambiguous")]

    run(main())
