"""The moves of a receipt, on the real store: each is guarded by key, state, attempt and more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import MOVES, Move, Receipt, ReceiptState
from perdure.effects.store import Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.errors import InvalidInvocation, LeaseLost, StaleDecision
from tests.harness import run, sql
from tests.receipts import CHARGE, KEY, Receipts, receipts

SETTLING = (Move.COMPLETE, Move.REFUSE, Move.DOUBT, Move.RULE_OUT)
STATES = tuple(ReceiptState)


def settlement(receipt: Receipt, move: Move, **changes: Any) -> Settlement:
    fields: dict[str, Any] = {
        "operation_key": receipt.operation_key,
        "attempt": receipt.attempt,
        "generation": receipt.generation,
        "move": move,
        "payload": b"1" if move is Move.COMPLETE else None,
        **changes,
    }
    return Settlement(**fields)


@dataclass
class Attempted:
    """A receipt in some state, and the worker that made its first attempt."""

    it: Receipts
    owner: Owner
    receipt: Receipt

    async def settle(self, move: Move, **changes: Any) -> tuple[Receipt, bool]:
        return await self.it.storage.settle_effect(settlement(self.receipt, move, **changes))

    async def send_again(self, owner: Owner, *, risk: bool = False) -> tuple[Receipt, bool]:
        claim = self.it.claim(owner)
        return await self.it.storage.send_again(self.receipt, claim, unknown=True, risk=risk)


async def attempted(it: Receipts, state: ReceiptState, **changes: Any) -> Attempted:
    owner = await it.owner()
    receipt, mine = await it.storage.claim_effect(it.claim(owner, **changes))
    assert mine
    assert (receipt.state, receipt.attempt) == (ReceiptState.IN_FLIGHT, 1)
    to = {
        ReceiptState.COMPLETED: Move.COMPLETE,
        ReceiptState.FAILED: Move.REFUSE,
        ReceiptState.AMBIGUOUS: Move.DOUBT,
    }
    if state in to:
        receipt, landed = await it.storage.settle_effect(settlement(receipt, to[state]))
        assert landed
    return Attempted(it, owner, receipt)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", SETTLING)
def test_a_settlement_lands_where_the_table_says(
    tmp_path: Path, state: ReceiptState, move: Move
) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, state)
            after, landed = await effect.settle(move)
            assert landed == ((state, move) in MOVES)
            assert after.state is MOVES.get((state, move), state)
            assert after.version == effect.receipt.version + landed

    run(main())


@pytest.mark.parametrize("state", STATES)
def test_an_attempt_begins_where_the_table_says(tmp_path: Path, state: ReceiptState) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, state)
            other = await it.owner()
            claimed, mine = await it.storage.claim_effect(it.claim(other))
            assert mine == ((state, Move.CLAIM) in MOVES)
            assert claimed.attempt == 1 + mine
            assert claimed.holder == (other.holder if mine else effect.owner.holder)

    run(main())


@pytest.mark.parametrize("state", [None, *STATES])
def test_every_move_that_the_table_has_is_tested_above(state: ReceiptState | None) -> None:
    begun = {(None, Move.CLAIM), (ReceiptState.AMBIGUOUS, Move.SEND_AGAIN)}
    tested = {(of, move) for of in STATES for move in (*SETTLING, Move.CLAIM)} | begun
    assert {key for key in MOVES if key[0] is state} <= tested


def test_only_what_is_ambiguous_and_as_it_was_seen_is_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.AMBIGUOUS)
            again, mine = await effect.send_again(effect.owner, risk=True)
            assert mine
            assert again.attempt == 2
            assert again.earlier_unknown
            assert again.residual_duplicate_risk
            assert await effect.send_again(effect.owner) == (again, False)
            effect.receipt, _ = await it.storage.settle_effect(settlement(again, Move.DOUBT))
            sql(tmp_path, "UPDATE receipts SET version = version + 1")
            assert not (await effect.send_again(effect.owner))[1]

    run(main())


@pytest.mark.parametrize("move", SETTLING)
@pytest.mark.parametrize("wrong", [{"attempt": 1}, {"generation": 7}, {"operation_key": "op-x"}])
def test_a_late_report_does_not_touch_a_newer_attempt(
    tmp_path: Path, move: Move, wrong: dict[str, Any]
) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(
                it, ReceiptState.AMBIGUOUS, support=SideEffectSupport.IDEMPOTENT
            )
            claim = it.claim(effect.owner, support=SideEffectSupport.IDEMPOTENT)
            newer, _ = await it.storage.send_again(effect.receipt, claim, unknown=True, risk=False)
            effect.receipt = newer
            if "operation_key" in wrong:
                await it.storage.claim_effect(
                    it.claim_of(effect.owner, OperationIdentity("a", "b", "c"))
                )
                wrong["operation_key"] = OperationIdentity("a", "b", "c").operation_key
                wrong["attempt"] = 9
            assert not (await effect.settle(move, **wrong))[1]
            assert await it.storage.read_receipt(KEY) == newer

    run(main())


def test_a_proof_that_comes_after_a_newer_attempt_began_marks_the_duplicate(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.AMBIGUOUS)
            await it.storage.send_again(
                effect.receipt, it.claim(effect.owner), unknown=False, risk=False
            )
            for stopped in (False, True):
                after, landed = await effect.settle(Move.COMPLETE, stopped=stopped)
                assert not landed
                assert after.residual_duplicate_risk == stopped
            assert (after.state, after.attempt) == (ReceiptState.IN_FLIGHT, 2)

    run(main())


def test_the_first_completion_wins(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.COMPLETED)
            after, landed = await effect.settle(Move.COMPLETE, payload=b"2")
            assert (after.payload, landed) == (b"1", False)

    run(main())


def test_other_arguments_do_not_begin_another_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.FAILED)
            claim = it.claim(effect.owner, arguments_sha256=b"6")
            assert await it.storage.claim_effect(claim) == (effect.receipt, False)

    run(main())


def test_who_is_gone_claims_nothing_and_leaves_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.IN_FLIGHT)
            assert await it.storage.doubt_vanished(KEY) == []
            await it.storage.retire_worker(effect.owner.holder)
            with pytest.raises(LeaseLost):
                await it.storage.claim_effect(it.claim(effect.owner))
            assert await it.storage.doubt_vanished("op-other") == []
            (doubted,) = await it.storage.doubt_vanished(None)
            assert await it.storage.read_receipt(KEY) == doubted
            assert await it.storage.doubt_vanished(None) == []
            assert (doubted.state, doubted.resend_after) == (ReceiptState.AMBIGUOUS, None)

    run(main())


def test_an_attempt_in_a_run_belongs_to_one_claim_of_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            holder = (await it.owner()).holder
            sql(
                tmp_path,
                "INSERT INTO runs (run_id, function, version, state, holder, generation,"
                " created_at, input_sha256, input) VALUES ('invoice-17', 'f', 1, 'running', ?, 2,"
                " 0, x'00', x'00')",
                holder,
            )
            with pytest.raises(LeaseLost):
                await it.storage.claim_effect(it.claim(Owner(holder, 1)))
            await it.storage.claim_effect(it.claim(Owner(holder, 2)))
            assert await it.storage.doubt_vanished(KEY) == []
            sql(tmp_path, "UPDATE runs SET generation = 3")
            assert len(await it.storage.doubt_vanished(KEY)) == 1

    run(main())


def test_nothing_more_comes_from_a_process_that_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.IN_FLIGHT)
            sql(tmp_path, "UPDATE workers SET gone = 2 WHERE holder = ?", effect.owner.holder)
            (doubted,) = await it.storage.doubt_vanished(KEY)
            assert doubted.resend_after == it.clock.now() + 5.0

    run(main())


def test_one_asks_at_a_time_until_the_right_ends_or_its_holder_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.AMBIGUOUS)
            ask = it.storage.claim_lookup
            first, mine = await ask(effect.receipt, effect.owner, 10)
            assert mine
            # The same worker is no exception: it may have two callers.
            assert await ask(effect.receipt, effect.owner, 10) == (first, False)
            it.clock.advance(10)
            other = await it.owner()
            second, mine = await ask(effect.receipt, other, 10)
            assert mine
            late = await it.storage.end_lookup(first, answered=False, ask_again_at=0.0, limit=1)
            assert late == second
            await it.storage.retire_worker(other.holder)
            assert (await ask(effect.receipt, effect.owner, 10))[1]

    run(main())


def test_lookups_without_an_answer_are_counted_up_to_the_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, ReceiptState.AMBIGUOUS)
            now = it.clock.now()
            seen: list[tuple[int, bool]] = []
            for answered in (False, True, False):
                asking, mine = await it.storage.claim_lookup(effect.receipt, effect.owner, 10)
                assert mine
                asked = await it.storage.end_lookup(
                    asking, answered=answered, ask_again_at=now, limit=2
                )
                seen.append((asked.lookups, asked.exhausted))
            assert seen == [(1, False), (1, False), (2, True)]
            assert not (await it.storage.claim_lookup(effect.receipt, effect.owner, 10))[1]

    run(main())


@pytest.mark.parametrize("state", [s for s in STATES if s is not ReceiptState.AMBIGUOUS])
def test_a_person_decides_about_what_is_ambiguous_alone(
    tmp_path: Path, state: ReceiptState
) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            effect = await attempted(it, state)
            with pytest.raises(StaleDecision, match=state.value):
                await effect.settle(Move.COMPLETE, version=effect.receipt.version, by="a", why="b")
            assert await it.storage.read_receipt(KEY) == effect.receipt

    run(main())


def test_the_key_is_of_the_identity_and_of_nothing_else() -> None:
    assert CHARGE.operation_key == "op-51e32ce6326c0f6b2565b229a556fa45b204c77a"
    others = [
        ("invoice-17", "charge", "bank", 2),
        ("invoice-17", "charg", "ebank", 1),
        ("invoice-1", "7charge", "bank", 1),
        ('invoice-17","charge', "x", "bank", 1),
        ("invoice-17", 'x","charge', "bank", 1),
    ]
    keys = {OperationIdentity(*parts).operation_key for parts in others}
    assert len(keys | {KEY}) == 6
    assert not {"attempt", "generation", "holder"} & set(OperationIdentity.__struct_fields__)


@pytest.mark.parametrize(
    "parts", [("", "a", "b"), ("a", "", "b"), ("a", "b", ""), ("a", 1, "b"), ("\ud800", "a", "b")]
)
def test_an_identity_is_made_of_texts(parts: Any) -> None:
    with pytest.raises(InvalidInvocation, match="is a text"):
        OperationIdentity(*parts)


@pytest.mark.parametrize("ordinal", [-1, True, 1.0])
def test_an_ordinal_is_a_whole_number(ordinal: Any) -> None:
    with pytest.raises(InvalidInvocation, match="0 or more"):
        OperationIdentity("a", "b", "c", ordinal)
