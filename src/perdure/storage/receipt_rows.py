from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from perdure.effects.receipt import Move, Receipt, ReceiptState, sources, target_of
from perdure.effects.store import DecisionRow, EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.errors import EffectErased, NotErasable, StaleDecision
from perdure.storage.documents import Documents
from perdure.wording import printable

VANISHED: Final = "its worker is gone"
"""What statements write as the problem of an attempt, by themselves and so in the open."""

_FLAGS: Final = ("exhausted", "earlier_unknown", "residual_duplicate_risk")


class ReceiptRows(Documents):
    """Translates between receipts and their rows; answers, problems and reasons pass the vault."""

    def claim(self, claim: EffectClaim, now: float) -> dict[str, Any]:
        """Return an attempt that is about to begin as the parameters of its statements."""
        identity = claim.identity
        key = claim.operation_key
        return {
            "operation_key": key,
            "run_id": identity.run_id,
            "idempotency_key": identity.idempotency_key,
            "target": identity.target,
            "ordinal": identity.ordinal,
            "support": claim.support.value,
            "arguments_sha256": self.seal_digest(claim.arguments_sha256, arguments_of(key)),
            "holder": claim.owner.holder,
            "generation": claim.owner.generation,
            "settle_seconds": claim.settle_seconds,
            "resend_after": claim.resend_after,
            "handler_id": claim.handler_id,
            "now": now,
        }

    def settlement(self, settlement: Settlement, now: float) -> dict[str, Any]:
        """Return a move of a receipt as the parameters of the statement that makes it."""
        state, possible = move_of(settlement.move, decided=settlement.version is not None)
        key = settlement.operation_key
        payload, problem, why = settlement.payload, settlement.problem, settlement.why
        if payload is not None:
            payload = self.vault.seal(payload, answer_of(key))
        if problem is not None:
            problem = self.vault.seal_text(printable(problem), doubt_of(key))
        if why is not None:
            why = self.vault.seal_text(why, reason_of(key))
        return {
            **msgspec.structs.asdict(settlement),
            "payload": payload,
            "problem": problem,
            "why": why,
            "state": state,
            "sources": possible,
            "now": now,
        }

    def receipt(self, row: Sequence[Any]) -> Receipt:
        """Return a receipt as it stands."""
        fields = dict(zip(Receipt.__struct_fields__, row, strict=True))
        key = fields["operation_key"]
        fields["support"] = SideEffectSupport(fields["support"])
        fields["state"] = ReceiptState(fields["state"])
        for name in _FLAGS:
            fields[name] = bool(fields[name])
        digest = fields["arguments_sha256"]
        fields["arguments_sha256"] = self.unseal_digest(digest, arguments_of(key))
        if (payload := fields["payload"]) is not None:
            fields["payload"] = self.vault.unseal(bytes(payload), answer_of(key))
        if (problem := fields["problem"]) not in {None, VANISHED}:
            fields["problem"] = self.vault.unseal_text(problem, doubt_of(key))
        if (why := fields["decided_why"]) is not None:
            fields["decided_why"] = self.vault.unseal_text(why, reason_of(key))
        return Receipt(**fields)

    def new_decision(self, settlement: Settlement, decided_at: float | None) -> dict[str, Any]:
        """Return what a person decided about one attempt, as the row that keeps it."""
        landed = settlement.move is Move.COMPLETE
        decision = "landed" if landed else "send_again" if settlement.risk else "never_will"
        key, why = settlement.operation_key, settlement.why
        if why is not None:
            why = self.vault.seal_text(why, reason_of(key, settlement.version))
        return {
            "operation_key": key,
            "version": settlement.version,
            "attempt": settlement.attempt,
            "decision": decision,
            "by": settlement.by,
            "why": why,
            "now": decided_at,
        }

    def decision(self, row: Sequence[Any]) -> DecisionRow:
        """Return what a person decided about one attempt."""
        key, attempt, version, decision, by, why, decided_at = row
        why = self.vault.unseal_text(why, reason_of(key, version))
        return DecisionRow(key, attempt, version, decision, by, why, decided_at)


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


def last_was_decided(receipt: Receipt, decisions: Iterable[Sequence[Any]]) -> bool:
    """Return whether a person decided about the last attempt, by the rows of all decisions."""
    return any(attempt == receipt.attempt for _, attempt, *_ in decisions)


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


def lookup_row(receipt: Receipt, owner: Owner, now: float, hold_seconds: float) -> dict[str, Any]:
    """Return the right to ask about an attempt as the parameters of the statement that takes it."""
    return {
        **attempt_row(receipt),
        "holder": owner.holder,
        "now": now,
        "until": now + hold_seconds,
    }


def asked_row(
    receipt: Receipt, *, answered: bool, ask_again_at: float, limit: int
) -> dict[str, Any]:
    """Return a lookup that settled nothing as the parameters of the statement that notes it."""
    return {
        **attempt_row(receipt),
        "version": receipt.version,
        "ask_again_at": ask_again_at,
        "unanswered": not answered,
        "limit": limit,
    }


def erasure_row(run_id: str, by: str, why: str, now: float) -> dict[str, Any]:
    """Return an erasure as the parameters of its statements."""
    row = {"run_id": run_id, "by": printable(by), "why": printable(why), "now": now}
    return {**row, **buried_of(run_id)}


def buried_of(run_id: str) -> dict[str, Any]:
    """Return what finds the tombstones of the receipts of a run, or of what they belonged to."""
    return {"run_sha256": hashlib.sha256(run_id.encode()).digest()}


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


def arguments_of(operation_key: str) -> str:
    """Return the place of the digest of what an effect stands for."""
    return f"the arguments of effect {operation_key}"


def answer_of(operation_key: str) -> str:
    """Return the place of what a target answered."""
    return f"the answer of effect {operation_key}"


def doubt_of(operation_key: str) -> str:
    """Return the place of what was reported of an attempt instead of an answer."""
    return f"the problem of effect {operation_key}"


def reason_of(operation_key: str, version: int | None = None) -> str:
    """Return the place of why a person decided about a version of a receipt; None: the last."""
    return f"the reason of a decision about effect {operation_key}|{version or 'last'}"
