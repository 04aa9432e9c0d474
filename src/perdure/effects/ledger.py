from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from perdure.clock import Clock
from perdure.effects.audit import AuditSink, allowed, audit_of
from perdure.effects.effect import Effect
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Receipts, Settlement
from perdure.errors import EffectInProgress, LeaseLost, PerdureError
from perdure.observe import Observer, log

Settle: TypeAlias = Callable[[Settlement], Awaitable[tuple[Receipt, bool]]]


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
        audit: AuditSink,
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
        receipt: Receipt,
        settle: Settle,
        move: Move,
        *,
        payload: bytes | None = None,
        problem: str | None = None,
        stopped: bool = False,
    ) -> tuple[Receipt, bool]:
        """Move the receipt of an attempt, unless another has; return what it is now."""
        settlement = Settlement(
            operation_key=receipt.operation_key,
            attempt=receipt.attempt,
            generation=receipt.generation,
            move=move,
            payload=payload,
            problem=problem,
            stopped=stopped,
        )
        settled, landed = await settle(settlement)
        if landed:
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
        await self.note(audit_of(after, first_execution=not asked and after.attempt == 1))

    async def note_replay(self, receipt: Receipt) -> None:
        """Count and audit that a receipt answered."""
        self._observer.count("perdure_side_effect_replay_suppressed_total")
        await self.note(audit_of(receipt, replay_suppressed=True))

    async def note(self, facts: Mapping[str, object]) -> None:
        """Write what may be in an audit record."""
        try:
            await self._audit.write(allowed(facts))
        except Exception:  # noqa: BLE001 - what a foreign sink cannot keep has happened all the same
            log.exception("the audit of %s was not written", facts.get("operation_key"))

    async def look_again(self, receipt: Receipt) -> Receipt:
        """Doubt an attempt in flight that nobody makes any more.

        Raises `EffectInProgress` when somebody does.
        """
        key = receipt.operation_key
        await self._ownership.notice_deaths()
        if receipt.holder == self._ownership.owner().holder and not self._busy[key]:
            problem = "it ended, and how could not be written"
            settled, _ = await self.settle(
                receipt, self.receipts.settle_effect, Move.DOUBT, problem=problem
            )
            return settled
        doubted = await self.receipts.doubt_vanished(key)
        current = await self.receipts.read_receipt(key)
        assert current is not None
        if doubted:
            await self.note_move(receipt, current, Move.DOUBT)
        elif current.state is ReceiptState.IN_FLIGHT:
            raise EffectInProgress(key)
        return current

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
        writing = asyncio.ensure_future(begin(self._claim(effect)))
        self._busy[key] += 1
        mine = False
        try:
            receipt, mine = await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The claim is written all the same, and would stand for as long as this process.
            await asyncio.shield(self._withdraw(writing))
            raise
        finally:
            if not mine:
                self._leave(key)
        return Standing(receipt, mine, deadline)

    async def _withdraw(self, writing: Awaitable[tuple[Receipt, bool]]) -> None:
        with suppress(LeaseLost, PerdureError):
            receipt, mine = await writing
            if mine:
                await self.settle_unsent(receipt, "the caller was cancelled before it was sent")

    async def settle_unsent(
        self, receipt: Receipt, problem: str, settle: Settle | None = None
    ) -> None:
        """End an attempt that sent nothing; what an earlier one did is as unknown as before."""
        move = Move.DOUBT if receipt.earlier_unknown else Move.REFUSE
        settle = settle or self.receipts.settle_effect
        await self.settle(receipt, settle, move, problem=problem, stopped=True)

    def _leave(self, key: str) -> None:
        self._busy[key] -= 1
        if not self._busy[key]:
            del self._busy[key]

    def _claim(self, effect: Effect) -> EffectClaim:
        policy = effect.policy
        resend_after = None
        if policy.timeout_seconds is not None:
            resend_after = self._clock.now() + policy.timeout_seconds + policy.settle_seconds
        return EffectClaim(
            identity=effect.identity,
            support=policy.support,
            arguments_sha256=effect.arguments_sha256,
            owner=self._ownership.owner(),
            settle_seconds=policy.settle_seconds,
            resend_after=resend_after,
        )
