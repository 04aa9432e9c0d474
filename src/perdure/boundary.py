from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Protocol, TypeVar

import msgspec

from perdure.declaration import EffectDeclaration, Verdict
from perdure.effects.effect import MOST_SENT, Effect
from perdure.effects.guard import Guard
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import Owner, Settlement
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import (
    EffectAmbiguous,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    JournalError,
)
from perdure.fence import Fence
from perdure.journal.failures import bounded, failure_of
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Success, Suspended
from perdure.journal.store import NewRecord
from perdure.ports import Ownership, Ports
from perdure.wording import text_of

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.05
_REPORTED: Final = {"EffectRejected": Verdict.REFUSED, "EffectNotSent": Verdict.NOT_SENT}


class Insist(Protocol):
    """Does with the store what cannot be left out, as `Performer.insist`."""

    def __call__(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Return what `work` returns, as soon as the store lets it."""
        ...


class Attempt(msgspec.Struct, frozen=True):
    """What an attempt of an operation came to, and the exception, if it raised one.

    `verdict` is what the handler said of its effect, and `why` in which words; None when its
    outcome has to tell. `record` is what was written along with the receipt; None when the outcome
    is still to be recorded.
    """

    outcome: Outcome
    error: Exception | None = None
    verdict: Verdict | None = None
    why: str = ""
    record: NewRecord | None = None


class AskedEffect(msgspec.Struct, frozen=True):
    """An effect that a run asks for.

    `call` makes one attempt and `record_of` the record of an outcome. `retries` tells which
    exceptions are tried again, and so are not recorded yet; None when none is.
    """

    invocation: Invocation
    input_sha256: bytes
    declared: EffectDeclaration
    call: Callable[[], Awaitable[Attempt]]
    record_of: Callable[[Outcome], NewRecord]
    retries: Callable[[Exception], bool] | None = None

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


class Boundary:
    """Applies the effects of one run under one claim: receipt first, then the call, then both.

    The record of an operation and the end of its receipt are written in one transaction, so that
    no crash leaves one without the other.
    """

    def __init__(self, fence: Fence, ports: Ports, ownership: Ownership, insist: Insist) -> None:
        self._fence = fence
        self._store = ports.store
        self._clock = ports.clock
        self._insist = insist
        self._known = ports.known
        owner = _RunOwner(fence, ownership)
        self._guard = Guard(
            ports.store, owner, ports.clock, ports.observer, ports.probe, ports.audit
        )

    async def apply(self, asked: AskedEffect) -> Attempt:
        """Apply an effect and return what it came to, or what its receipt holds.

        Durable when it returns: the receipt; and the record, if it says so.
        If it raises: `EffectAmbiguous` when a person has to say what became of it, another
        `PerdureError` when it cannot be applied under this identity, or as the store does.
        """
        self._known.learn(asked.invocation.handler_id, asked.declared)
        async with AsyncExitStack() as prepared:
            prepare = asked.declared.prepare
            if prepare is not None and not await self._may_have_been(asked):
                try:
                    await prepared.enter_async_context(prepare())
                except Exception as error:  # noqa: BLE001 - nothing was claimed: it just failed
                    return Attempt(failure_of(error), error)
            return await _Application(asked, self._settle).finish(self._apply)

    async def _may_have_been(self, asked: AskedEffect) -> bool:
        """Return whether an effect was applied, or may have been: its receipt then has the say."""
        key = asked.identity.operation_key
        receipt = await self._insist(lambda: self._store.read_receipt(key))
        return receipt is not None and receipt.state is not ReceiptState.FAILED

    async def _apply(self, effect: Effect) -> Receipt:
        while True:
            try:
                return (await self._insist(lambda: self._guard.apply(effect))).receipt
            except EffectInProgress:
                # Its target is being asked, on behalf of a worker or a person who looks at it.
                await self._clock.sleep(_LOOK_SECONDS)

    async def _settle(
        self, settlement: Settlement, record: NewRecord | None
    ) -> tuple[Receipt, bool]:
        store, fence = self._store, self._fence
        if record is None:
            return await self._insist(lambda: store.settle_effect(settlement))
        return await self._insist(lambda: store.settle_record(fence, settlement, record))


class _Application:
    """One effect on its way through the guard, and what its attempts came to."""

    def __init__(
        self,
        asked: AskedEffect,
        settle: Callable[[Settlement, NewRecord | None], Awaitable[tuple[Receipt, bool]]],
    ) -> None:
        self._asked = asked
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
            handler_id=asked.invocation.handler_id,
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
                raise _Unanswered(why) if last.error is None or own else last.error
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


class _Unanswered(Exception):
    """Stands for a failure that a handler returned without saying that it is a refusal."""


class _RunOwner:
    """A run's claim as the owner of the attempts that are made under it."""

    def __init__(self, fence: Fence, ownership: Ownership) -> None:
        self._owner = Owner(fence.holder, fence.generation)
        self._run_id = fence.run_id
        self._ownership = ownership

    def owner(self) -> Owner:
        """Return the claim; raises `LeaseLost` when it can no longer be confirmed."""
        self._ownership.check(self._run_id)
        return self._owner

    async def notice_deaths(self) -> None:
        """Do nothing: an attempt under an earlier claim of the run is over, or fenced off."""


def _verdict_of(outcome: Outcome) -> Verdict:
    """Return what an outcome without an exception says of the effect."""
    match outcome:
        case Success():
            return Verdict.APPLIED
        case Suspended():
            return Verdict.NOT_SENT
        case Failure():
            return _REPORTED.get(outcome.error_name, Verdict.UNKNOWN)


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
