from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from perdure.canonical import encode
from perdure.clock import Clock
from perdure.effects.answer import Answer, Landed, Lookup, NeverWill, NotYet, Unknown
from perdure.effects.effect import Effect
from perdure.effects.ledger import Ledger, Standing
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectAmbiguous, EffectInProgress, EffectRejected
from perdure.observe import Observer
from perdure.wording import printable, text_of

_LOOKUP_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_MOST_RULED_OUT: Final = 5


class Reconciler:
    """Settles doubt as the effect's support allows: repeat under its key, ask, or give it up.

    A lookup is itself a claim: one caller asks at a time, and what it hears lands only on the
    attempt that it asked about.
    """

    def __init__(self, ledger: Ledger, clock: Clock, observer: Observer) -> None:
        self._ledger = ledger
        self._clock = clock
        self._observer = observer

    async def resolve(self, effect: Effect, receipt: Receipt, sent: int) -> Standing:
        """Go on with an ambiguous receipt; `sent` is how often this caller has sent it.

        Raises `EffectAmbiguous` when nothing is left to do, and `EffectInProgress` while another
        caller asks the target.
        """
        policy, support = effect.policy, effect.policy.support
        if receipt.support is not support:
            # What was sent before was not sent the way that this support needs.
            support = SideEffectSupport.AT_LEAST_ONCE
        if support is SideEffectSupport.IDEMPOTENT and self._key_is_valid(policy, receipt, sent):
            await self._pause(effect, receipt, sent)
            return await self._ledger.send_again(effect, receipt, unknown=True)
        if effect.lookup is not None and support is not SideEffectSupport.AT_LEAST_ONCE:
            return await self._ask(effect, receipt, effect.lookup, sent)
        if policy.on_ambiguous is OnAmbiguous.RETRY:
            await self._pause(effect, receipt, sent)
            return await self._ledger.send_again(effect, receipt, unknown=True, risk=True)
        tell = policy.on_ambiguous is OnAmbiguous.TELL
        why = receipt.problem or "nobody knows how it ended"
        raise _ambiguous(receipt, why, needs_person=not tell)

    def _key_is_valid(self, policy: EffectPolicy, receipt: Receipt, sent: int) -> bool:
        if policy.key_valid_for_seconds is None:
            return True
        # The repeat has to arrive while the target still knows the key.
        arrives_at = self._clock.now() + _pause_seconds(sent) + (policy.timeout_seconds or 0.0)
        return arrives_at < receipt.first_claimed_at + policy.key_valid_for_seconds

    async def repeat(self, receipt: Receipt, sent: int) -> None:
        """Wait longer before each repeat of what was ruled out; `EffectRejected` after too many."""
        if sent >= _MOST_RULED_OUT:
            raise EffectRejected(f"{sent} attempts were not applied, the last: {receipt.problem}")
        await self._clock.sleep(_pause_seconds(sent))

    async def _pause(self, effect: Effect, receipt: Receipt, sent: int) -> None:
        """Wait longer before each repeat; raises `EffectAmbiguous` once there were too many."""
        if sent >= effect.most_sent:
            raise _ambiguous(receipt, f"{sent} attempts had no answer, the last: {receipt.problem}")
        await self._clock.sleep(_pause_seconds(sent))

    async def _ask(self, effect: Effect, receipt: Receipt, lookup: Lookup, sent: int) -> Standing:
        if receipt.exhausted:
            raise _ambiguous(receipt, "the target was asked, and could not say")
        receipt, mine = await self._ledger.claim_lookup(receipt, 2 * _LOOKUP_SECONDS)
        if not mine:
            return await self._wait(receipt)
        answer, asked_at = await self._answer(effect, receipt, lookup)
        match answer:
            case Landed() | NeverWill():
                return await self._settle(effect, receipt, answer)
            case NotYet():
                return await self._wait_or_send(effect, receipt, asked_at, sent)
            case Unknown():
                return await self._ask_later(effect, receipt, answer.why)
            case _:
                assert_never(answer)

    async def inquire(self, effect: Effect, receipt: Receipt) -> None:
        """Ask the target about an ambiguous effect once, and settle what it says; send nothing."""
        assert effect.lookup is not None
        receipt, mine = await self._ledger.claim_lookup(receipt, 2 * _LOOKUP_SECONDS)
        if not mine:
            return
        answer, asked_at = await self._answer(effect, receipt, effect.lookup)
        end = receipt.resend_after
        match answer:
            case Landed() | NeverWill():
                await self._settle(effect, receipt, answer)
            case NotYet() if end is not None and asked_at >= end:
                why = "the target has not seen it, and it can no longer arrive"
                await self._settle(effect, receipt, NeverWill(why))
            case NotYet() if end is not None:
                await self._end(effect, receipt, end)
            case NotYet() | Unknown():
                await self._unanswered(effect, receipt)
            case _:
                assert_never(answer)

    async def _answer(
        self, effect: Effect, receipt: Receipt, lookup: Lookup
    ) -> tuple[Answer, float]:
        """Return what the target says, and when it was asked."""
        # From before the question: an answer may be old by the time that it arrives.
        asked_at = self._clock.now()
        try:
            return await _answer_of(lookup, effect), asked_at
        except BaseException:
            await asyncio.shield(self._end(effect, receipt, asked_at))
            raise

    async def _settle(
        self, effect: Effect, receipt: Receipt, answer: Landed | NeverWill
    ) -> Standing:
        match answer:
            case Landed():
                settled, landed = await self._ledger.settle(
                    effect, receipt, Move.COMPLETE, payload=encode(answer.result)
                )
            case NeverWill():
                settled, landed = await self._ledger.settle(
                    effect, receipt, Move.RULE_OUT, problem=printable(str(answer.why))
                )
        return Standing(settled, reconciled=landed)

    async def _wait(self, receipt: Receipt) -> Standing:
        """Wait until the target may be asked again, unless somebody asks it right now."""
        if receipt.state is ReceiptState.AMBIGUOUS and not receipt.exhausted:
            if receipt.lookup_holder is not None:
                raise EffectInProgress(receipt.operation_key)
            assert receipt.lookup_at is not None
            await self._clock.sleep(receipt.lookup_at - self._clock.now())
        return Standing(receipt)

    async def _wait_or_send(
        self, effect: Effect, receipt: Receipt, asked_at: float, sent: int
    ) -> Standing:
        end = receipt.resend_after
        if end is not None and asked_at >= end:
            await self._pause(effect, receipt, sent)
            standing = await self._ledger.send_again(effect, receipt, unknown=False)
            settled = int(standing.may_send)
            self._observer.count("perdure_side_effect_reconciliation_succeeded_total", settled)
            return standing
        current = await self._end(effect, receipt, asked_at if end is None else end)
        if end is None:
            raise _ambiguous(
                receipt,
                "the target has not seen it, and its attempt, which has no timeout_seconds, may"
                " still be under way",
            )
        await self._clock.sleep(end - self._clock.now())
        return Standing(current)

    async def _ask_later(self, effect: Effect, receipt: Receipt, why: str) -> Standing:
        current = await self._unanswered(effect, receipt)
        if current.exhausted:
            raise _ambiguous(receipt, f"the target was asked, and could not say: {why}")
        await self._clock.sleep(_unanswered_seconds(receipt))
        return Standing(current)

    async def _unanswered(self, effect: Effect, receipt: Receipt) -> Receipt:
        """Use up one lookup of the budget, and leave the next one for later."""
        again_at = self._clock.now() + _unanswered_seconds(receipt)
        current = await self._end(effect, receipt, again_at, answered=False)
        if current.exhausted:
            self._observer.count("perdure_side_effect_reconciliation_failed_total")
            await self._ledger.note(current)
        return current

    async def _end(
        self, effect: Effect, receipt: Receipt, ask_again_at: float, *, answered: bool = True
    ) -> Receipt:
        return await self._ledger.receipts.end_lookup(
            receipt,
            answered=answered,
            ask_again_at=ask_again_at,
            limit=effect.policy.reconcile_attempts,
        )


def _pause_seconds(sent: int) -> float:
    return _PAUSE_SECONDS * 2 ** (min(sent, _MOST_RULED_OUT) - 1) if sent else 0.0


def _unanswered_seconds(receipt: Receipt) -> float:
    return _PAUSE_SECONDS * 4**receipt.lookups


def _ambiguous(receipt: Receipt, why: str, *, needs_person: bool = True) -> EffectAmbiguous:
    return EffectAmbiguous(receipt.operation_key, receipt.target, why, needs_person=needs_person)


async def _answer_of(lookup: Callable[..., Awaitable[object]], effect: Effect) -> Answer:
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            answer = await lookup(effect.identity)
        if isinstance(answer, Landed):
            encode(answer.result, what="the lookup's result")
    except Exception as error:  # noqa: BLE001 - a lookup that fails has said nothing
        return Unknown(f"{type(error).__name__}: {text_of(error)}")
    if isinstance(answer, Landed | NeverWill | NotYet | Unknown):
        return answer
    return Unknown(f"the lookup returned a {type(answer).__name__}, which is no answer")
