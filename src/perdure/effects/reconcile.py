from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, assert_never

from perdure.clock import Clock
from perdure.effects.answer import Answer, Landed, Lookup, NeverWill, NotYet, Unknown
from perdure.effects.effect import MOST_SENT, Effect, Encode
from perdure.effects.foreign import Failed, call_foreign
from perdure.effects.identity import OperationIdentity
from perdure.effects.ledger import Ledger, Standing
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectAmbiguous, EffectInProgress, EffectRejected, PerdureError
from perdure.observe import Observer
from perdure.wording import printable

_LOOKUP_SECONDS: Final = 30.0
_UNANSWERED_SECONDS: Final = (5.0, 20.0, 80.0, 320.0, 1280.0, 3600.0)
"""How long after a lookup without an answer the next one is, by how many there were before it."""

_MOST_WAITED_SECONDS: Final = 10.0
"""How long a caller waits for the next lookup after one without an answer."""

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
            raise _given_up(receipt, sent)
        await self._clock.sleep(_pause_seconds(sent))

    def refuse_spent(self, effect: Effect, receipt: Receipt) -> None:
        """Raise `EffectRejected` if an effect was not applied by any attempt that it may have."""
        if receipt.state is ReceiptState.FAILED and effect.is_spent(receipt):
            raise _given_up(receipt, receipt.attempt)

    async def _pause(self, effect: Effect, receipt: Receipt, sent: int) -> None:
        """Wait longer before each repeat; raises `EffectAmbiguous` once there were too many."""
        if sent >= effect.most_sent:
            raise _ambiguous(receipt, f"{sent} attempts had no answer, the last: {receipt.problem}")
        await self._clock.sleep(_pause_seconds(sent))

    async def inquire(self, effect: Effect, receipt: Receipt) -> None:
        """Ask the target about an ambiguous effect once, and settle what it says; send nothing."""
        assert effect.lookup is not None
        receipt, answer, asked_at = await self._answer(effect, receipt, effect.lookup)
        end = receipt.resend_after
        match answer:
            case None:
                pass
            case Landed() | NeverWill():
                await self._settle(effect, receipt, answer)
            case NotYet() if end is not None and asked_at >= end:
                await self._settle(effect, receipt, _never_came(receipt))
            case NotYet() if end is not None:
                await self._end(effect, receipt, end)
            case NotYet() | Unknown():
                await self._unanswered(effect, receipt)
            case _:
                assert_never(answer)

    async def _ask(self, effect: Effect, receipt: Receipt, lookup: Lookup, sent: int) -> Standing:
        if receipt.exhausted:
            raise _ambiguous(receipt, _unsaid(""))
        receipt, answer, asked_at = await self._answer(effect, receipt, lookup)
        match answer:
            case None:
                return await self._wait(receipt)
            case Landed() | NeverWill():
                return await self._settle(effect, receipt, answer)
            case NotYet():
                return await self._wait_or_send(effect, receipt, asked_at, sent)
            case Unknown():
                return await self._ask_later(effect, receipt, answer.why)
            case _:
                assert_never(answer)

    async def _answer(
        self, effect: Effect, receipt: Receipt, lookup: Lookup
    ) -> tuple[Receipt, Answer | None, float]:
        """Return the receipt as it is claimed, what the target says, and when it was asked.

        The answer is None where nobody was asked, because it is too early or another caller asks.
        """
        receipt, mine = await self._ledger.claim_lookup(receipt, 2 * _LOOKUP_SECONDS)
        # From before the question: an answer may be old by the time that it arrives.
        asked_at = self._clock.now()
        if not mine:
            return receipt, None, asked_at
        try:
            answer = await call_foreign(
                lambda: _heard(lookup, effect.identity, effect.encode),
                _LOOKUP_SECONDS,
                self._clock,
                f"the lookup of {receipt.operation_key}",
            )
        except BaseException:
            await self._give_back(effect, receipt, asked_at)
            raise
        # A lookup that fails has said nothing.
        answer = Unknown(answer.why) if isinstance(answer, Failed) else answer
        return receipt, answer, asked_at

    async def _settle(
        self, effect: Effect, receipt: Receipt, answer: Landed | NeverWill
    ) -> Standing:
        match answer:
            case Landed():
                settled, landed = await self._ledger.settle(
                    effect, receipt, Move.COMPLETE, payload=effect.encode(answer.result)
                )
            case NeverWill():
                settled, landed = await self._ledger.settle(
                    effect, receipt, Move.RULE_OUT, problem=answer.why or "it never will be applied"
                )
        return Standing(settled, reconciled=landed)

    async def _wait(self, receipt: Receipt, why: str = "") -> Standing:
        """Wait until the target may be asked again, unless somebody asks it right now.

        Raises `EffectAmbiguous` when that is not soon, and the last lookup had no answer.
        """
        if receipt.state is ReceiptState.AMBIGUOUS and not receipt.exhausted:
            if receipt.lookup_holder is not None:
                raise EffectInProgress(receipt.operation_key)
            assert receipt.lookup_at is not None
            seconds = receipt.lookup_at - self._clock.now()
            if receipt.lookups and seconds > _MOST_WAITED_SECONDS:
                raise _ambiguous(receipt, f"{_unsaid(why)}; it can be asked again later")
            await self._clock.sleep(seconds)
        return Standing(receipt)

    async def _wait_or_send(
        self, effect: Effect, receipt: Receipt, asked_at: float, sent: int
    ) -> Standing:
        end = receipt.resend_after
        if end is not None and asked_at >= end:
            if sent >= MOST_SENT or effect.is_spent(receipt):
                return await self._settle(effect, receipt, _never_came(receipt))
            try:
                await self._pause(effect, receipt, sent)
            except BaseException:
                await self._give_back(effect, receipt, asked_at)
                raise
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
            raise _ambiguous(receipt, _unsaid(why))
        return await self._wait(current, why)

    async def _unanswered(self, effect: Effect, receipt: Receipt) -> Receipt:
        """Use up one lookup of the budget, and leave the next one for later."""
        again_at = self._clock.now() + _unanswered_seconds(receipt)
        if receipt.lookups + 2 == effect.policy.reconcile_attempts:
            # The last one is kept for when the attempt can no longer arrive.
            again_at = max(again_at, receipt.resend_after or again_at)
        current = await self._end(effect, receipt, again_at, answered=False)
        if current.exhausted:
            self._observer.count("perdure_side_effect_reconciliation_failed_total")
            await self._ledger.note(current)
        return current

    async def _give_back(self, effect: Effect, receipt: Receipt, asked_at: float) -> None:
        """Let others ask, as far as the store can be reached; the right ends by itself."""
        with suppress(PerdureError):
            await asyncio.shield(self._end(effect, receipt, asked_at))

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
    return _UNANSWERED_SECONDS[min(receipt.lookups, len(_UNANSWERED_SECONDS) - 1)]


def _never_came(receipt: Receipt) -> NeverWill:
    why = "the target has not seen it, and it can no longer arrive"
    return NeverWill(f"{why}: {receipt.problem}" if receipt.problem else why)


def _given_up(receipt: Receipt, attempts: int) -> EffectRejected:
    return EffectRejected(f"{attempts} attempts were not applied, the last: {receipt.problem}")


def _unsaid(why: str) -> str:
    return f"the target was asked, and could not say{why and f': {why}'}"


def _ambiguous(receipt: Receipt, why: str, *, needs_person: bool = True) -> EffectAmbiguous:
    return EffectAmbiguous(receipt.operation_key, receipt.target, why, needs_person=needs_person)


async def _heard(lookup: Lookup, identity: OperationIdentity, encode: Encode) -> Answer:
    """Return what a lookup says, in words that can be stored, whatever it thinks an answer is."""
    answer: object = await lookup(identity)
    match answer:
        case Landed():
            encode(answer.result)
            return answer
        case NeverWill():
            return NeverWill(_words(answer.why))
        case Unknown():
            return Unknown(_words(answer.why))
        case NotYet():
            return answer
        case _:
            kind = type(answer).__name__
            return Unknown(f"the lookup returned a {kind}, which is no answer")


def _words(why: object) -> str:
    return "" if why is None else printable(str(why))
