from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from perdure.attempt import Attempt, stand_in
from perdure.codec import Codec
from perdure.declaration import EffectDeclaration, Verdict
from perdure.effects.effect import MOST_SENT, Effect
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt
from perdure.effects.store import Settlement
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectAmbiguous, EffectNotSent, EffectRejected, JournalError
from perdure.journal.failures import bounded, failure_of
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Success, Suspended
from perdure.journal.store import NewRecord
from perdure.wording import text_of

_REPORTED: Final = {"EffectRejected": Verdict.REFUSED, "EffectNotSent": Verdict.NOT_SENT}


class AskedEffect(msgspec.Struct, frozen=True):
    """An effect that a run asks for.

    `call` makes one attempt and `record_of` the record of an outcome. `retries` tells which
    exceptions are tried again, and so are not recorded yet; None when none is. `attempt` is the
    try of the operation that asks, from 1.
    """

    invocation: Invocation
    input_sha256: bytes
    declared: EffectDeclaration
    call: Callable[[], Awaitable[Attempt]]
    record_of: Callable[[Outcome], NewRecord]
    retries: Callable[[Exception], bool] | None = None
    attempt: int = 1

    @property
    def identity(self) -> OperationIdentity:
        """Which effect this is."""
        return identity_of(self.invocation, self.declared.policy)

    @property
    def repeated(self) -> bool:
        """Whether what has no answer is tried again as what failed is, and not by the guard."""
        policy = self.declared.policy
        harmless = policy.support is SideEffectSupport.IDEMPOTENT
        wanted = harmless or policy.on_ambiguous is OnAmbiguous.RETRY
        return wanted and self.retries is not None

    @property
    def most_attempts(self) -> int | None:
        """How often the effect is sent by now without a person's word; None for any number.

        What can be asked about is ruled out behind the back of a parked run, which then goes on:
        without a bound it would send for ever.
        """
        asks = self.declared.policy.support is SideEffectSupport.OUTCOME_QUERYABLE
        return MOST_SENT * self.attempt if asks else None

    def retried(self, error: Exception | None) -> bool:
        """Return whether the operation is tried again after an exception."""
        return error is not None and self.retries is not None and self.retries(error)


def identity_of(invocation: Invocation, policy: EffectPolicy) -> OperationIdentity:
    """Return which effect an operation is: its place in the run, and what it acts on."""
    target = policy.target_of(invocation.handler_id)
    return OperationIdentity(invocation.run_id, invocation.step_id, target, invocation.sequence)


def key_of(invocation: Invocation, declared: EffectDeclaration | None) -> str | None:
    """Return the operation key of what is declared to have an effect, or None."""
    return None if declared is None else identity_of(invocation, declared.policy).operation_key


class Application:
    """One effect on its way through the guard, and what its attempts came to."""

    def __init__(
        self,
        asked: AskedEffect,
        settle: Callable[[Settlement, NewRecord | None], Awaitable[tuple[Receipt, bool]]],
        codec: Codec,
    ) -> None:
        self._asked = asked
        self._codec = codec
        self._write = settle
        self._last: Attempt | None = None
        self._error: Exception | None = None
        self._record: NewRecord | None = None

    async def finish(self, apply: Callable[[Effect], Awaitable[Receipt]]) -> Attempt:
        """Apply the effect and return how the operation ends, or may be tried again."""
        asked = self._asked
        effect = Effect(
            identity=asked.identity,
            arguments_sha256=asked.input_sha256,
            policy=asked.declared.policy,
            send=self._send,
            lookup=asked.declared.lookup,
            settle=self._settle,
            most_sent=1 if asked.repeated else MOST_SENT,
            most_attempts=asked.most_attempts,
            handler_id=asked.invocation.handler_id,
            encode=asked.declared.encoder(self._codec),
        )
        try:
            receipt = await apply(effect)
        except (EffectRejected, EffectNotSent) as refusal:
            return self._recorded or Attempt(failure_of(refusal), self._error or refusal)
        except EffectAmbiguous as doubt:
            return self._recorded or self._doubted(doubt)
        return self._recorded or self._answered(receipt)

    @property
    def _recorded(self) -> Attempt | None:
        """What was recorded along with the receipt, if that has happened."""
        record = self._record
        return None if record is None else Attempt(record.outcome, record=record)

    def _answered(self, receipt: Receipt) -> Attempt:
        """Return what a completed receipt answers; raises `JournalError` if it has no answer."""
        if receipt.payload is None:
            raise JournalError(
                f"the receipt {receipt.operation_key} is completed, and the record that was"
                " written with it is gone: restore the database from a backup"
            )
        return Attempt(self._output(receipt.payload))

    async def _send(self, identity: OperationIdentity) -> bytes:
        try:
            last = await self._asked.call()
        except asyncio.CancelledError:
            # By its time limit, if anything comes after this.
            self._error = TimeoutError("it took too long")
            raise
        self._last, self._error = last, last.error
        verdict = last.verdict or self._verdict(last)
        why = _why(last)
        match verdict:
            case Verdict.APPLIED:
                return b""
            case Verdict.REFUSED:
                raise EffectRejected(why) from last.error
            case Verdict.NOT_SENT:
                raise EffectNotSent(why) from last.error
            case Verdict.UNKNOWN if last.verdict is None:
                # What it says of an effect of its own is to this one an error like any other.
                own = isinstance(last.error, EffectAmbiguous)
                raise _unanswered(last) if last.error is None or own else last.error
            case Verdict.UNKNOWN:
                raise EffectAmbiguous(identity.operation_key, identity.target, why)

    def _verdict(self, attempt: Attempt) -> Verdict:
        declared = self._asked.declared
        match attempt.error:
            case None:
                return _verdict_of(attempt.outcome)
            case EffectRejected():
                return Verdict.REFUSED
            case EffectNotSent():
                return Verdict.NOT_SENT
            case error if isinstance(error, declared.rejected):
                return Verdict.REFUSED
            case error if isinstance(error, declared.not_sent):
                return Verdict.NOT_SENT
            case _:
                return Verdict.UNKNOWN

    async def _settle(self, settlement: Settlement) -> tuple[Receipt, bool]:
        outcome = self._to_record(settlement)
        self._last = None
        record = None if outcome is None else self._asked.record_of(outcome)
        if record is not None and settlement.stopped:
            # What the attempt said stands in the record.
            settlement = msgspec.structs.replace(settlement, payload=None)
        receipt, landed = await self._write(settlement, record)
        if landed:
            self._record = record
        return receipt, landed

    def _to_record(self, settlement: Settlement) -> Outcome | None:
        """Return what is recorded along with a move, or None for one that ends nothing."""
        last = self._last
        match settlement.move:
            case Move.COMPLETE if settlement.stopped:
                assert last is not None
                return last.outcome
            case Move.COMPLETE:
                assert settlement.payload is not None
                return self._output(settlement.payload)
            case Move.REFUSE if last is not None and not self._asked.retried(last.error):
                return last.outcome
            case Move.DOUBT if last is not None and last.verdict is Verdict.UNKNOWN:
                return last.outcome
            case _:
                return None

    def _output(self, payload: bytes) -> Outcome:
        output_of = self._asked.declared.output_of
        output = payload if output_of is None else output_of(payload)
        return bounded(Success(output), len(self._asked.invocation.input_json))

    def _doubted(self, doubt: EffectAmbiguous) -> Attempt:
        """Return how an operation goes on whose effect nobody knows of, or raise the doubt."""
        if self._asked.repeated and self._asked.retried(self._error):
            return Attempt(failure_of(doubt), self._error)
        if doubt.needs_person:
            raise doubt
        return Attempt(_told(doubt))


def _verdict_of(outcome: Outcome) -> Verdict:
    """Return what an outcome without an exception says of the effect."""
    match outcome:
        case Success():
            return Verdict.APPLIED
        case Suspended():
            return Verdict.NOT_SENT
        case Failure():
            return _REPORTED.get(outcome.error_name, Verdict.UNKNOWN)


def _unanswered(attempt: Attempt) -> Exception:
    """Return what stands for an end that is neither a refusal nor an ordinary exception."""
    outcome = attempt.outcome
    if isinstance(outcome, Failure):
        return stand_in(outcome.error_name, attempt.why or outcome.message)
    return stand_in("Unanswered", _why(attempt))


def _why(attempt: Attempt) -> str:
    if attempt.why:
        return attempt.why
    if attempt.error is not None:
        return text_of(attempt.error)
    outcome = attempt.outcome
    if isinstance(outcome, Failure):
        return f"{outcome.type_name or outcome.error_name}: {outcome.message}"
    return "it answered that nothing was done"


def _told(doubt: EffectAmbiguous) -> Failure:
    """Return the failure by which a caller is told that nobody knows."""
    failure = failure_of(doubt)
    data = {"operation_key": doubt.operation_key, "target": doubt.target, "why": doubt.why}
    return msgspec.structs.replace(failure, data_json=msgspec.json.encode(data))
