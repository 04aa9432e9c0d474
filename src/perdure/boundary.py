from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final, cast

from perdure.activity import Activity
from perdure.asked_effect import Application, AskedEffect
from perdure.attempt import Attempt
from perdure.effects.effect import Effect
from perdure.effects.guard import Guard
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.store import Owner, Settlement
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectAmbiguous, EffectInProgress, JournalError
from perdure.fence import Fence
from perdure.journal.failures import failure_of
from perdure.journal.store import NewRecord
from perdure.ports import Ownership, Ports
from perdure.tenure import Tenure

_LOOK_SECONDS: Final = 0.05
_OPEN: Final = {ReceiptState.IN_FLIGHT, ReceiptState.AMBIGUOUS}
_THROUGH: Final = (KeyboardInterrupt, GeneratorExit)


class Boundary:
    """Applies the effects of one run under one claim: receipt first, then the call, then both.

    The record of an operation and the end of its receipt are written in one transaction, so that
    no crash leaves one without the other.
    """

    def __init__(
        self,
        fence: Fence,
        ports: Ports,
        ownership: Ownership,
        tenure: Tenure,
        activity: Activity,
    ) -> None:
        self._fence = fence
        self._store = ports.store
        self._clock = ports.clock
        self._tenure = tenure
        self._activity = activity
        self._insist = tenure.insist
        self._left: list[AskedEffect] = []
        self._known = ports.known
        self._codec = ports.codec
        owner = _RunOwner(fence, ownership)
        self._guard = Guard(
            ports.store, owner, ports.clock, ports.observer, ports.probe, ports.audit
        )

    async def apply(self, asked: AskedEffect) -> Attempt:
        """Apply an effect and return what it came to, or what its receipt holds.

        Durable when it returns: the receipt; and the record, if it says so.
        If it raises: `EffectAmbiguous` when a person has to say what became of it, also because
        the code of the run has cut it short; another `PerdureError` when it cannot be applied under
        this identity, or as the store does.
        """
        self._known.learn(asked.invocation.handler_id, asked.declared)
        try:
            return await self._prepared(asked)
        except Exception:
            raise
        except BaseException as cut:
            self._left.append(asked)
            doubt = await self._doubt_of(asked) if self._is_by_code(cut) else None
            if doubt is None:
                raise
            raise doubt from cut

    async def left_in_doubt(self) -> EffectAmbiguous | None:
        """Return what a person has to say of an effect that was cut short here, or None."""
        for asked in self._left:
            doubt = await self._doubt_of(asked)
            if doubt is not None:
                return doubt
        return None

    async def is_open(self, operation_key: str) -> bool:
        """Return whether nobody knows what became of an effect that its target cannot drop."""
        receipt = await self._insist(lambda: self._store.read_receipt(operation_key))
        if receipt is None or receipt.support is SideEffectSupport.IDEMPOTENT:
            return False
        return receipt.state in _OPEN

    def _is_by_code(self, cut: BaseException) -> bool:
        """Return whether the code of the run cut an effect short, and would go on after it."""
        if self._activity.stopping or self._tenure.refusal() is not None:
            return False
        return not _passes(cut)

    async def _doubt_of(self, asked: AskedEffect) -> EffectAmbiguous | None:
        """Return the doubt about an effect that neither a repeat nor a lookup settles, or None."""
        key = asked.identity.operation_key
        receipt = await self._insist(lambda: self._store.read_receipt(key))
        if receipt is None or receipt.state not in _OPEN:
            return None
        if not _needs_person(asked.declared.policy, receipt):
            return None
        why = receipt.problem or "nobody knows how it ended"
        return EffectAmbiguous(key, receipt.target, why)

    async def _prepared(self, asked: AskedEffect) -> Attempt:
        async with AsyncExitStack() as prepared:
            prepare = asked.declared.prepare
            if prepare is not None and not await self._may_have_been(asked):
                try:
                    await prepared.enter_async_context(prepare())
                except Exception as error:  # noqa: BLE001 - nothing was claimed: it just failed
                    return Attempt(failure_of(error), error)
            return await Application(asked, self._settle, self._codec).finish(self._apply)

    async def _may_have_been(self, asked: AskedEffect) -> bool:
        """Return whether an effect was applied, or may have been: its receipt then has the say."""
        key = asked.identity.operation_key
        receipt = await self._insist(lambda: self._store.read_receipt(key))
        return receipt is not None and receipt.state is not ReceiptState.FAILED

    async def _apply(self, effect: Effect) -> Receipt:
        while True:
            try:
                applied = await self._insist(lambda: self._guard.apply(effect))
            except EffectInProgress:
                # Its target is being asked, on behalf of a worker or a person who looks at it.
                await self._clock.sleep(_LOOK_SECONDS)
            else:
                if not applied.executed:
                    await self._refuse_earlier(applied.receipt)
                return applied.receipt

    async def _refuse_earlier(self, receipt: Receipt) -> None:
        """Raise `JournalError` for the answer of a run of this id that retention has deleted."""
        if receipt.state is not ReceiptState.COMPLETED or receipt.payload is not None:
            return
        run = await self._insist(lambda: self._store.read_run(receipt.run_id))
        if run is not None and receipt.claimed_at < run.created_at:
            raise JournalError(
                f"the effect {receipt.operation_key} was applied by an earlier run"
                f" {receipt.run_id}, whose records were deleted by retention: it is not sent again."
                f" Use another run id for new work, and end this run with"
                f" `perdure cancel {receipt.run_id}`"
            )

    async def _settle(
        self, settlement: Settlement, record: NewRecord | None
    ) -> tuple[Receipt, bool]:
        store, fence = self._store, self._fence
        if record is None:
            return await self._insist(lambda: store.settle_effect(settlement))
        return await self._insist(lambda: store.settle_record(fence, settlement, record))


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


def _passes(error: BaseException) -> bool:
    """Return whether an exception is none of the run, and must come out as it is."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(_THROUGH) is not None
    return isinstance(error, _THROUGH)


def _needs_person(policy: EffectPolicy, receipt: Receipt) -> bool:
    """Return whether nobody but a person settles an effect that is in doubt."""
    match policy.support:
        case SideEffectSupport.IDEMPOTENT if receipt.support is policy.support:
            return False
        case SideEffectSupport.OUTCOME_QUERYABLE if receipt.support is policy.support:
            return receipt.exhausted
        case _:
            return policy.on_ambiguous is OnAmbiguous.ASK
