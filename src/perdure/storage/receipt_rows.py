from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from perdure.effects.receipt import Move, Receipt, ReceiptState, sources, target_of
from perdure.effects.store import EffectClaim, Settlement
from perdure.errors import EffectErased, NotErasable, StaleDecision


def claim_row(claim: EffectClaim, now: float) -> dict[str, Any]:
    """Return an attempt that is about to begin as the parameters of its statements."""
    identity = claim.identity
    return {
        "operation_key": claim.operation_key,
        "run_id": identity.run_id,
        "idempotency_key": identity.idempotency_key,
        "target": identity.target,
        "ordinal": identity.ordinal,
        "support": claim.support.value,
        "arguments_sha256": claim.arguments_sha256,
        "holder": claim.owner.holder,
        "generation": claim.owner.generation,
        "settle_seconds": claim.settle_seconds,
        "resend_after": claim.resend_after,
        "handler_id": claim.handler_id,
        "now": now,
    }


def begun(claim: EffectClaim, now: float) -> Receipt:
    """Return the receipt that the first claim of an effect writes."""
    identity = claim.identity
    return Receipt(
        operation_key=claim.operation_key,
        run_id=identity.run_id,
        idempotency_key=identity.idempotency_key,
        target=identity.target,
        ordinal=identity.ordinal,
        support=claim.support,
        arguments_sha256=claim.arguments_sha256,
        state=ReceiptState.IN_FLIGHT,
        attempt=1,
        holder=claim.owner.holder,
        generation=claim.owner.generation,
        version=1,
        first_claimed_at=now,
        claimed_at=now,
        settle_seconds=claim.settle_seconds,
        resend_after=claim.resend_after,
        handler_id=claim.handler_id,
    )


def next_attempt(receipt: Receipt, *, unknown: bool, risk: bool) -> dict[str, Any]:
    """Return what the receipt must still be for another attempt to begin, and what that marks."""
    return {
        "state": receipt.state.value,
        "attempt": receipt.attempt,
        "seen_generation": receipt.generation,
        "version": receipt.version,
        "unknown": unknown,
        "risk": risk,
    }


def taken_back(receipt: Receipt) -> Settlement:
    """Return the move of a claim whose caller was cancelled before it sent anything."""
    return Settlement(
        operation_key=receipt.operation_key,
        attempt=receipt.attempt,
        generation=receipt.generation,
        move=Move.DOUBT if receipt.earlier_unknown else Move.REFUSE,
        problem="the caller was cancelled before it was sent",
        stopped=True,
    )


def decision_row(settlement: Settlement, decided_at: float | None) -> dict[str, Any]:
    """Return what a person decided about one attempt."""
    landed = settlement.move is Move.COMPLETE
    decision = "landed" if landed else "send_again" if settlement.risk else "never_will"
    return {
        "operation_key": settlement.operation_key,
        "version": settlement.version,
        "attempt": settlement.attempt,
        "decision": decision,
        "by": settlement.by,
        "why": settlement.why,
        "now": decided_at,
    }


def attempt_row(receipt: Receipt) -> dict[str, Any]:
    """Return the attempt of a receipt as the parameters that a statement names it by."""
    return {
        "operation_key": receipt.operation_key,
        "attempt": receipt.attempt,
        "generation": receipt.generation,
    }


def stale(receipt: Receipt, version: int) -> StaleDecision:
    """Return the error of a decision about a receipt that has become another one."""
    return StaleDecision(
        f"the receipt {receipt.operation_key} is {receipt.state.value} with version"
        f" {receipt.version}, and the decision was about an ambiguous one with version"
        f" {version}: look at it again"
    )


def erased(operation_key: str, tombstone: Sequence[Any]) -> EffectErased:
    """Return the error of an effect whose receipt is a tombstone."""
    state, by, why = tombstone
    return EffectErased(operation_key, state=state, by=by, why=why)


def not_ended(run_id: str, state: str) -> NotErasable:
    """Return the error of erasing a run that goes on."""
    return NotErasable(
        f"run {run_id} is {state}, and only what has ended can be erased: cancel it first, and"
        " wait for its end"
    )


def not_settled(run_id: str, keys: Sequence[str]) -> NotErasable:
    """Return the error of erasing what effects that nobody has settled belong to."""
    return NotErasable(
        f"{run_id} cannot be erased while nobody knows what becomes of its effects"
        f" {', '.join(keys)}: settle them first",
        keys,
    )


@lru_cache(maxsize=16)
def move_of(move: Move, *, decided: bool) -> tuple[str, str]:
    """Return the state that a move leads to and, as one text, those it may start from."""
    possible = {state for state in sources(move) if state}
    if decided:
        possible &= {ReceiptState.AMBIGUOUS}
    return target_of(move).value, f"|{'|'.join(sorted(possible))}|"
