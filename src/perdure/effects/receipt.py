from __future__ import annotations

import enum
from typing import Final

import msgspec

from perdure.effects.support import SideEffectSupport


class ReceiptState(enum.StrEnum):
    """What is known of an effect. That it was never begun is the absence of a receipt."""

    IN_FLIGHT = "in_flight"
    """An attempt is under way, or vanished without a word."""

    COMPLETED = "completed"
    """The effect was applied, and the receipt holds the answer. Final."""

    FAILED = "failed"
    """The target reported a refusal, or nothing was sent. It may be tried again."""

    AMBIGUOUS = "ambiguous"
    """Nobody knows. Not a failure."""


class Move(enum.StrEnum):
    """What happens to a receipt."""

    CLAIM = "claim"
    """An attempt begins."""

    COMPLETE = "complete"
    """The attempt, or the target when asked, reports that the effect was applied."""

    REFUSE = "refuse"
    """The attempt reports that the target refused, or that nothing was sent."""

    DOUBT = "doubt"
    """The attempt ended, or its worker vanished, without an answer."""

    RULE_OUT = "rule_out"
    """The target when asked, or a person, says that the attempt never was and never will be."""

    SEND_AGAIN = "send_again"
    """An attempt begins although an earlier one may have been applied."""


MOVES: Final[dict[tuple[ReceiptState | None, Move], ReceiptState]] = {
    (None, Move.CLAIM): ReceiptState.IN_FLIGHT,
    (ReceiptState.FAILED, Move.CLAIM): ReceiptState.IN_FLIGHT,
    (ReceiptState.IN_FLIGHT, Move.COMPLETE): ReceiptState.COMPLETED,
    (ReceiptState.IN_FLIGHT, Move.REFUSE): ReceiptState.FAILED,
    (ReceiptState.IN_FLIGHT, Move.DOUBT): ReceiptState.AMBIGUOUS,
    (ReceiptState.AMBIGUOUS, Move.COMPLETE): ReceiptState.COMPLETED,
    (ReceiptState.FAILED, Move.COMPLETE): ReceiptState.COMPLETED,
    (ReceiptState.AMBIGUOUS, Move.RULE_OUT): ReceiptState.FAILED,
    (ReceiptState.AMBIGUOUS, Move.SEND_AGAIN): ReceiptState.IN_FLIGHT,
}
"""Every legal move of one attempt's receipt.

A late `REFUSE` finds no row here: only `RULE_OUT` ends doubt with a no. An attempt that was ruled
out and yet reports that it was applied is believed: a proof beats a verdict.
"""


def sources(move: Move) -> frozenset[ReceiptState | None]:
    """Return the states that a move may start from."""
    return frozenset(state for state, possible in MOVES if possible is move)


def target_of(move: Move) -> ReceiptState:
    """Return the state that a move leads to, wherever it started."""
    (state,) = {target for (_, possible), target in MOVES.items() if possible is move}
    return state


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The durable proof and state of one effect.

    `attempt` counts from 1, and `holder` made the last one. `version` grows with each change, for
    decisions that name what they were based on. `payload` is the answer of a completed effect,
    `problem` what was reported otherwise.

    `resend_after` is when the last attempt can no longer be applied: `settle_seconds` after its
    deadline or after it stopped; None when that is not known. `lookups` counts those without an
    answer, `lookup_holder` asks at this moment, and `lookup_at` is when somebody else may.
    `earlier_unknown` says that an attempt before the last one may have been applied, and
    `residual_duplicate_risk` that the target could not tell the two apart.

    `handler_id` names who applies it inside a run; None outside of one. Times are wall seconds,
    UTC.
    """

    operation_key: str
    run_id: str
    idempotency_key: str
    target: str
    ordinal: int
    support: SideEffectSupport
    arguments_sha256: bytes
    state: ReceiptState
    attempt: int
    holder: str
    generation: int
    version: int
    payload: bytes | None = None
    problem: str | None = None
    first_claimed_at: float
    claimed_at: float
    settled_at: float | None = None
    settle_seconds: float = 0.0
    resend_after: float | None = None
    lookups: int = 0
    lookup_at: float | None = None
    lookup_holder: str | None = None
    exhausted: bool = False
    earlier_unknown: bool = False
    residual_duplicate_risk: bool = False
    decided_by: str | None = None
    decided_why: str | None = None
    handler_id: str | None = None

    def seen_as(self, version: int) -> int:
        """Return the version of now for one since which the target was asked in vain, and no more.

        Any other is returned as it is. A person need not look again for want of an answer.
        """
        # Each lookup without an answer counts twice, as it begins and as it ends: so many versions
        # ago the attempt was as ambiguous as now. When a late report marked a risk, nobody knows.
        asked = 2 * self.lookups + (self.lookup_holder is not None)
        oldest = self.version - (0 if self.residual_duplicate_risk else asked)
        return self.version if oldest <= version <= self.version else version


class Change(msgspec.Struct, frozen=True):
    """What a receipt was and what it is now, both without their answers.

    `before` is None for one that was begun meanwhile. In between it may have been more than that.
    """

    before: Receipt | None
    after: Receipt
