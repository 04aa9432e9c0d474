from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from perdure.clock import Clock
from perdure.effects.audit import AuditSink, audit_of
from perdure.effects.effect import Effect
from perdure.effects.foreign import Failed, call_foreign
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Receipts, Settlement
from perdure.errors import EffectInProgress
from perdure.observe import Observer, log

_AUDIT_SECONDS: Final = 5.0


class Ownership(Protocol):
    """Who this process is to the store, for as long as that is confirmed."""

    def owner(self) -> Owner:
        """Return the owner under which an attempt may begin; raises `LeaseLost`."""
        ...

    async def notice_deaths(self) -> None:
        """Let the store know of workers that are gone, so that their attempts are doubted."""
        ...


class Standing(msgspec.Struct, frozen=True):
    """Where a caller stands: the receipt, and whether it is the one to send.

    `deadline` is when the attempt must have ended, on the monotonic clock; None for never.
    `reconciled` says that this caller has just settled the doubt about it.
    """

    receipt: Receipt
    may_send: bool = False
    deadline: float | None = None
    reconciled: bool = False


class Ledger:
    """Moves receipts, and lets the counters and the audit know of each move that landed."""

    def __init__(
        self,
        receipts: Receipts,
        ownership: Ownership,
        clock: Clock,
        observer: Observer,
        audit: AuditSink | None,
    ) -> None:
        self.receipts = receipts
        self._ownership = ownership
        self._clock = clock
        self._observer = observer
        self._audit = audit
        # Who of this process claims or sends, by operation key: an attempt in flight that is
        # this process's and in nobody's hands has ended without its receipt being written.
        self._busy: Counter[str] = Counter()

    async def claim(self, effect: Effect) -> Standing:
        """Begin an attempt unless there is a receipt that stands against it."""
        return await self._begin(effect, self.receipts.claim_effect)

    async def send_again(
        self, effect: Effect, receipt: Receipt, *, unknown: bool, risk: bool = False
    ) -> Standing:
        """Begin another attempt of an ambiguous effect, unless its receipt has changed."""
        return await self._begin(
            effect,
            lambda claim: self.receipts.send_again(receipt, claim, unknown=unknown, risk=risk),
        )

    def leave(self, receipt: Receipt) -> None:
        """Let go of an attempt; whoever may send calls it once that is over."""
        self._leave(receipt.operation_key)

    async def settle(
        self,
        effect: Effect,
        receipt: Receipt,
        move: Move,
        *,
        payload: bytes | None = None,
        problem: str | None = None,
        stopped: bool = False,
        noted: bool = True,
    ) -> tuple[Receipt, bool]:
        """Move the receipt of an attempt, unless another has; return what it is now.

        A move that is not `noted` is neither counted nor audited.
        """
        settlement = Settlement(
            operation_key=receipt.operation_key,
            attempt=receipt.attempt,
            generation=receipt.generation,
            move=move,
            payload=payload,
            problem=problem,
            stopped=stopped,
        )
        write = effect.settle or self.receipts.settle_effect
        settled, landed = await write(settlement)
        if landed and noted:
            await self.note_move(receipt, settled, move)
        return settled, landed

    async def note_move(self, before: Receipt, after: Receipt, move: Move) -> None:
        """Count a move that landed and audit it; `before` is what the mover knew."""
        asked = before.state is ReceiptState.AMBIGUOUS
        repeated = before.earlier_unknown and not before.residual_duplicate_risk
        if move is Move.DOUBT:
            self._observer.count("perdure_side_effect_ambiguous_total")
        elif asked or repeated:
            self._observer.count("perdure_side_effect_reconciliation_succeeded_total")
        await self.note(after, first_execution=not asked and after.attempt == 1)

    async def note_replay(self, receipt: Receipt) -> None:
        """Count and audit that a receipt answered."""
        self._observer.count("perdure_side_effect_replay_suppressed_total")
        await self.note(receipt, replay_suppressed=True)

    async def note(
        self, receipt: Receipt, *, first_execution: bool = False, replay_suppressed: bool = False
    ) -> None:
        """Write an audit record of a receipt; what its sink cannot keep in time is dropped."""
        audit, key = self._audit, receipt.operation_key
        if audit is None:
            return
        facts = audit_of(
            receipt, first_execution=first_execution, replay_suppressed=replay_suppressed
        )
        # What it is about has happened all the same.
        kept = await call_foreign(
            lambda: audit.write(facts), _AUDIT_SECONDS, self._clock, f"the audit of {key}"
        )
        if isinstance(kept, Failed):
            log.error("the audit record of %s is dropped: %s", key, kept.why, exc_info=kept.cause)

    async def look_again(self, effect: Effect, receipt: Receipt) -> Receipt:
        """Doubt an attempt in flight that nobody makes any more.

        Raises `EffectInProgress` when somebody does.
        """
        key = receipt.operation_key
        await self._ownership.notice_deaths()
        if receipt.holder == self._ownership.owner().holder and not self._busy[key]:
            problem = "it ended, and how could not be written"
            settled, _ = await self.settle(effect, receipt, Move.DOUBT, problem=problem)
            return settled
        await self.doubt_vanished(key)
        current = await self.receipts.read_receipt(key)
        assert current is not None
        if current.state is ReceiptState.IN_FLIGHT:
            raise EffectInProgress(key)
        return current

    async def doubt_vanished(self, operation_key: str | None) -> Sequence[Receipt]:
        """Doubt what is in flight although its owner is gone; None means all of it.

        Returns the receipts that this call doubted. Each is counted and audited.
        """
        doubted = await self.receipts.doubt_vanished(operation_key)
        self._observer.count("perdure_side_effect_ambiguous_total", len(doubted))
        # At the same time: a sink that hangs costs its time once.
        await asyncio.gather(
            *(self.note(receipt, first_execution=receipt.attempt == 1) for receipt in doubted)
        )
        return doubted

    async def claim_lookup(self, receipt: Receipt, hold_seconds: float) -> tuple[Receipt, bool]:
        """Take the right to ask the target, for a while, unless another has it and lives."""
        if receipt.lookup_holder is not None:
            await self._ownership.notice_deaths()
        return await self.receipts.claim_lookup(receipt, self._ownership.owner(), hold_seconds)

    async def _begin(
        self, effect: Effect, begin: Callable[[EffectClaim], Awaitable[tuple[Receipt, bool]]]
    ) -> Standing:
        key = effect.identity.operation_key
        timeout = effect.policy.timeout_seconds
        # Counted from before the claim, which may wait for the disk: what the claim says about
        # the end of the attempt must hold however long that takes.
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        self._busy[key] += 1
        mine = False
        try:
            receipt, mine = await begin(self._claim(effect, key))
        finally:
            if not mine:
                self._leave(key)
        return Standing(receipt, mine, deadline)

    async def settle_unsent(self, effect: Effect, receipt: Receipt, problem: str) -> Receipt:
        """End an attempt that sent nothing; what an earlier one did is as unknown as before."""
        move = Move.DOUBT if receipt.earlier_unknown else Move.REFUSE
        # Neither counted nor audited: it was never dispatched.
        settled, _ = await self.settle(
            effect, receipt, move, problem=problem, stopped=True, noted=False
        )
        return settled

    def _leave(self, key: str) -> None:
        self._busy[key] -= 1
        if not self._busy[key]:
            del self._busy[key]

    def _claim(self, effect: Effect, operation_key: str) -> EffectClaim:
        policy = effect.policy
        resend_after = None
        if policy.timeout_seconds is not None:
            resend_after = self._clock.now() + policy.timeout_seconds + policy.settle_seconds
        return EffectClaim(
            operation_key=operation_key,
            identity=effect.identity,
            support=policy.support,
            arguments_sha256=effect.arguments_sha256,
            owner=self._ownership.owner(),
            settle_seconds=policy.settle_seconds,
            resend_after=resend_after,
            handler_id=effect.handler_id,
            most_attempts=effect.most_attempts,
        )
