from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt
from perdure.effects.support import SideEffectSupport


class Owner(msgspec.Struct, frozen=True):
    """Who makes an attempt: a worker, and the claim of its run under which it does, or 0."""

    holder: str
    generation: int = 0


class EffectClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is about to begin.

    `resend_after` is the wall time after which this attempt can no longer be applied: its deadline
    and the `settle_seconds` of its target; None when it has no deadline. After `most_attempts` of
    them only a person lets another one begin; None for any number.
    """

    operation_key: str
    identity: OperationIdentity
    support: SideEffectSupport
    arguments_sha256: bytes
    owner: Owner
    settle_seconds: float
    resend_after: float | None
    handler_id: str | None = None
    most_attempts: int | None = None

    def is_spent_by(self, receipt: Receipt) -> bool:
        """Return whether there were as many attempts as there may be without a person's word."""
        return self.most_attempts is not None and receipt.attempt >= self.most_attempts


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """A move of one attempt's receipt, and what is known with it.

    It lands only on the attempt and the claim that it names. `stopped` says that the attempt
    itself reports this as its end, and sends nothing more. `by`, `why` and `version` are a
    person's decision: who, why and on which version of the receipt; it lands on an ambiguous one
    only. `risk` marks that what follows may apply the effect twice.
    """

    operation_key: str
    attempt: int
    generation: int
    move: Move
    payload: bytes | None = None
    problem: str | None = None
    stopped: bool = False
    risk: bool = False
    by: str | None = None
    why: str | None = None
    version: int | None = None


class BuriedReceipt(msgspec.Struct, frozen=True):
    """What is left of a receipt that was erased: the `state` that it said, and who erased it."""

    operation_key: str
    state: str
    erased_at: float
    erased_by: str
    erased_why: str


class DecisionRow(msgspec.Struct, frozen=True):
    """What a person decided about one attempt: who, why, when, and on which version.

    `decision` is `landed`, `never_will` or `send_again`. The time is wall seconds, UTC.
    """

    operation_key: str
    attempt: int
    version: int
    decision: str
    decided_by: str
    decided_why: str
    decided_at: float


class Receipts(Protocol):
    """The port through which receipts are kept.

    Every write is one UPDATE guarded by key, state, attempt and generation. A method that returns
    a receipt returns it as it stands afterwards.
    """

    async def read_receipt(self, operation_key: str) -> Receipt | None:
        """Return a receipt, or None for an effect that was never begun; raises `EffectErased`."""
        ...

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        """Begin the first attempt of an effect, or another one after a refusal.

        What has failed after as many attempts as there may be stays so, unless a person ruled out
        the last one. Returns the receipt and whether this caller may send. A claim whose caller is
        cancelled is taken back before the cancellation goes on.
        Durable when it returns: the receipt in flight, fsynced.
        If it raises: `LeaseLost` when the owner no longer owns its run, `EffectErased` for an
        effect whose receipt was erased, or a `StorageError`; nothing may be sent.
        """
        ...

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        """Begin another attempt of an ambiguous effect, unless its receipt changed meanwhile.

        `unknown` marks that the attempt before may have been applied, and `risk` that the target
        would then apply the effect twice. Returns the receipt and whether this caller may send.
        Durable when it returns: the receipt in flight, fsynced.
        If it raises: as `claim_effect`.
        """
        ...

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        """Move a receipt; return it and whether the move landed.

        An attempt that was applied although a later one had begun marks the risk of a duplicate.
        Whoever ends doubt frees the run that is parked for it.
        A person's decision is kept, and a run that is parked for want of one waits for a worker
        again.
        Durable when it returns: the move, fsynced, and with a decision all of that.
        If it raises: `StaleDecision` when the receipt is not what a person decided about.
        """
        ...

    async def doubt_vanished(self, operation_key: str | None) -> Sequence[Receipt]:
        """Make an attempt in flight whose owner is gone ambiguous; None means all of them.

        Returns the receipts that this call made so, and nobody else's.
        Durable when it returns: the doubts, fsynced.
        """
        ...

    async def claim_lookup(
        self, receipt: Receipt, owner: Owner, hold_seconds: float
    ) -> tuple[Receipt, bool]:
        """Take the right to ask the target about an ambiguous attempt, for a while.

        Returns the receipt and whether this caller may ask.
        Durable when it returns: the claim, fsynced.
        """
        ...

    async def end_lookup(
        self, receipt: Receipt, *, answered: bool, ask_again_at: float, limit: int
    ) -> Receipt:
        """Note a lookup that settled nothing, unless another one has begun since `receipt`.

        One without an answer uses up one of `limit`.
        Durable when it returns: the count, fsynced; at `limit` the receipt is exhausted.
        """
        ...

    async def list_due(self, handler_ids: Sequence[str], limit: int) -> Sequence[Receipt]:
        """Return ambiguous receipts of these handlers whose targets may be asked now."""
        ...

    async def list_receipts(
        self, *, ambiguous_only: bool, limit: int, run_id: str | None = None
    ) -> Sequence[Receipt]:
        """Return receipts, the newest first."""
        ...

    async def erase_receipts(self, run_id: str, *, by: str, why: str) -> int:
        """Delete the receipts of a run, or of whatever they belong to, and keep tombstones.

        Returns how many. Not in one transaction, but each receipt with its tombstone.
        Durable when it returns: the tombstones and the deletions, fsynced.
        If it raises: `NotErasable`, and nothing was deleted, or a `StorageError`, after which
        erasing again goes on.
        """
        ...

    async def match_receipts(self, prefix: str, limit: int) -> Sequence[Receipt]:
        """Return the receipts whose operation key begins with a text, in the order of the keys."""
        ...

    async def list_buried(self, run_id: str) -> Sequence[BuriedReceipt]:
        """Return what is left of the erased receipts of a run, in the order of the keys.

        Those that an older release erased are left out: nobody knows whose they were.
        """
        ...

    async def list_decisions(self, operation_key: str) -> Sequence[DecisionRow]:
        """Return what people decided about an effect, oldest first."""
        ...

    async def list_changeable(self, limit: int) -> tuple[int, Sequence[Receipt]]:
        """Return receipts that may still change, without their answers: `limit` at most.

        Those that are open come first, then the newest. With them comes the number of the newest
        receipt of all.
        """
        ...

    async def read_changes(
        self, after: int, known: Mapping[str, int], limit: int
    ) -> tuple[int, Sequence[Receipt]]:
        """Return receipts after a number, and those of `known` whose version is another now.

        `known` are versions by operation key. The receipts come oldest first, `limit` at most and
        without their answers, and with the number to go on after.
        """
        ...
