from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from perdure.clock import Clock
from perdure.effects.audit import AuditSink
from perdure.effects.effect import Effect
from perdure.effects.foreign import described
from perdure.effects.ledger import Ledger, Ownership, Standing
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.reconcile import Reconciler
from perdure.effects.store import Receipts
from perdure.effects.support import SideEffectSupport
from perdure.errors import (
    EffectAmbiguous,
    EffectConflict,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    LeaseLost,
    PerdureError,
    StorageCorrupt,
)
from perdure.observe import Observer
from perdure.wording import text_of


class Applied(msgspec.Struct, frozen=True):
    """What an effect came to.

    `executed` tells that this call applied it; otherwise its receipt answered.
    """

    receipt: Receipt
    executed: bool

    @property
    def payload(self) -> bytes:
        """The answer of the target, one JSON document; raises `StorageCorrupt` if it is gone."""
        payload = self.receipt.payload
        if payload is None:
            raise StorageCorrupt(
                f"what {self.receipt.operation_key} came to is gone from the database, which is"
                " damaged; restore it from a backup"
            )
        return payload


class Guard:
    """Applies effects: claims the receipt, sends, settles.

    The receipt in flight is on the disk before anything is sent, so whoever comes later knows
    that something may have been. Doubt is never turned into a failure: the key makes a repeat
    harmless, the target is asked, or a person decides.
    """

    def __init__(
        self,
        receipts: Receipts,
        ownership: Ownership,
        clock: Clock,
        observer: Observer,
        probe: Callable[[str], None],
        audit: AuditSink | None,
    ) -> None:
        self.ledger = Ledger(receipts, ownership, clock, observer, audit)
        self._reconciler = Reconciler(self.ledger, clock, observer)
        self._ownership = ownership
        self._clock = clock
        self._observer = observer
        self._probe = probe

    async def apply(self, effect: Effect) -> Applied:
        """Apply an effect, or return what its receipt holds.

        Durable when it returns: the completed receipt, fsynced.
        If it raises: `EffectRejected` or `EffectNotSent` as the send did (the receipt failed),
        `EffectInProgress` or `EffectConflict` (nothing was sent), `EffectAmbiguous` when nobody
        knows; `LeaseLost` before anything was sent; a `StorageError` leaves the receipt in
        flight, and the next caller doubts it.
        """
        standing = await self.ledger.claim(effect)
        if standing.receipt.arguments_sha256 != effect.arguments_sha256:
            raise EffectConflict(standing.receipt.operation_key)
        sent = 0
        while True:
            if standing.may_send:
                sent += 1
                receipt, executed = await self._attempt(effect, standing)
                if receipt.state is ReceiptState.COMPLETED:
                    return Applied(receipt, executed)
                standing = Standing(receipt)
            elif standing.receipt.state is ReceiptState.COMPLETED:
                if not standing.reconciled:
                    await self.ledger.note_replay(standing.receipt)
                return Applied(standing.receipt, executed=False)
            else:
                standing = await self._go_on(effect, standing.receipt, sent)

    async def _go_on(self, effect: Effect, receipt: Receipt, sent: int) -> Standing:
        match receipt.state:
            case ReceiptState.IN_FLIGHT:
                return Standing(await self.ledger.look_again(effect, receipt))
            case ReceiptState.AMBIGUOUS:
                return await self._reconciler.resolve(effect, receipt, sent)
            case ReceiptState.FAILED:
                if sent > 1:
                    await self._reconciler.repeat(receipt, sent)
                standing = await self.ledger.claim(effect)
                if not standing.may_send:
                    self._reconciler.refuse_spent(effect, standing.receipt)
                return standing
            case ReceiptState.COMPLETED:
                return Standing(receipt)

    async def _attempt(self, effect: Effect, standing: Standing) -> tuple[Receipt, bool]:
        """Send once and settle; return the receipt and whether this attempt completed it."""
        receipt = standing.receipt
        try:
            payload = await self._send(effect, standing)
            if payload is None and effect.overdue is not None:
                # In doubt for all others; this caller has a send that may still be going on.
                payload = await effect.overdue()
                receipt = msgspec.structs.replace(receipt, state=ReceiptState.AMBIGUOUS)
            if payload is None:
                current = await self.ledger.receipts.read_receipt(receipt.operation_key)
                assert current is not None
                return current, False
            self._probe("effect.sent")
            return await self._complete(effect, receipt, payload)
        finally:
            self.ledger.leave(receipt)

    async def _send(self, effect: Effect, standing: Standing) -> bytes | None:
        """Send; return the answer, or None when the receipt says what came of it instead."""
        receipt = standing.receipt
        self._probe("effect.send")
        try:
            seconds = await self._seconds_left(effect, standing)
        except _TooLate:
            return None
        first = receipt.attempt == 1
        self._observer.count("perdure_side_effect_first_execution_total", int(first))
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await effect.send(effect.identity)
        except (EffectRejected, EffectNotSent) as refusal:
            await self._refuse(effect, receipt, refusal)
        except EffectAmbiguous as doubt:
            # The function itself says that nobody knows, and leaves it at that.
            await self.ledger.settle(effect, receipt, Move.DOUBT, problem=doubt.why, stopped=True)
            raise
        except Exception as error:  # noqa: BLE001 - all but a reported refusal leaves doubt
            problem = described(error)
            # What was only told to stop may send on, in a thread of its own.
            stopped = not limit.expired()
            await self.ledger.settle(effect, receipt, Move.DOUBT, problem=problem, stopped=stopped)
        except BaseException as stop:
            # Whether it went out is unknown, and the receipt must say so before this task ends.
            cancelled = isinstance(stop, asyncio.CancelledError)
            how = "cancelled" if cancelled else f"stopped by {type(stop).__name__}"
            problem = f"the attempt was {how}"
            with suppress(PerdureError):  # what is not written is doubted by the next caller
                await asyncio.shield(
                    self.ledger.settle(effect, receipt, Move.DOUBT, problem=problem)
                )
            raise
        return None

    async def _seconds_left(self, effect: Effect, standing: Standing) -> float | None:
        """Return how long the attempt may take, right before it is sent; None for no bound.

        A process that was frozen since its claim may have lost it: then nothing is sent. Raises
        `LeaseLost`, and when no time is left `EffectNotSent`, or `_TooLate` where an earlier
        attempt leaves open whether it was applied.
        """
        try:
            self._ownership.owner()
        except LeaseLost:
            problem = "its worker lost its lease before it was sent"
            await self.ledger.settle_unsent(effect, standing.receipt, problem)
            raise
        if standing.deadline is None:
            return None
        seconds = standing.deadline - self._clock.monotonic()
        if seconds <= 0:
            problem = "its time was over before it was sent"
            settled = await self.ledger.settle_unsent(effect, standing.receipt, problem)
            if settled.state is not ReceiptState.FAILED:
                raise _TooLate
            raise EffectNotSent(problem)
        return seconds

    async def _refuse(
        self, effect: Effect, receipt: Receipt, refusal: EffectRejected | EffectNotSent
    ) -> None:
        """Write a refusal and raise it, unless it leaves open what an earlier attempt did."""
        # Only a target that knows the key speaks for all attempts under it.
        by_key = isinstance(refusal, EffectRejected) and not receipt.residual_duplicate_risk
        by_key = by_key and receipt.support is SideEffectSupport.IDEMPOTENT
        open_still = receipt.earlier_unknown and not by_key
        move = Move.DOUBT if open_still else Move.REFUSE
        settled, _ = await self.ledger.settle(
            effect, receipt, move, problem=text_of(refusal), stopped=True
        )
        if settled.state is ReceiptState.FAILED:
            raise refusal

    async def _complete(
        self, effect: Effect, receipt: Receipt, payload: bytes
    ) -> tuple[Receipt, bool]:
        settled, landed = await self.ledger.settle(
            effect, receipt, Move.COMPLETE, payload=payload, stopped=True
        )
        match settled.state:
            case ReceiptState.COMPLETED:
                return settled, landed
            case ReceiptState.IN_FLIGHT:
                raise EffectInProgress(receipt.operation_key)
            case _:
                # Never sent again by a caller that knows it was applied.
                why = f"attempt {receipt.attempt} reported success after another had begun"
                raise EffectAmbiguous(receipt.operation_key, receipt.target, why)


class _TooLate(Exception):
    """Says that a repeat was not sent for want of time: the effect is in doubt as before."""
