from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self

from perdure.canonical import decode, encode
from perdure.clock import Clock, SystemClock
from perdure.effects.answer import Decision, Landed, Lookup, NeverWill, SendAgain
from perdure.effects.audit import AuditSink, NoAudit
from perdure.effects.effect import Effect
from perdure.effects.guard import Applied, Guard
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import Owner, Settlement
from perdure.effects.support import EffectPolicy
from perdure.engine.lease import Lease
from perdure.engine.store import WorkerNews
from perdure.errors import (
    EffectInProgress,
    EngineClosed,
    LeaseLost,
    StaleDecision,
    StorageError,
    UnknownEffect,
)
from perdure.observe import Observer
from perdure.ports import Probe, no_probe
from perdure.urls import open_storage, path_of

_POLL_SECONDS: Final = 0.02
_MOST_LEASES: Final = 5

Sender = Callable[[OperationIdentity], Awaitable[Any]]


class ReceiptStore:
    """Receipts on their own: for a script, a queue's task, or another engine's activity.

    Opened by its first use, for the event loop of that use, and closed by `close` or at the end of
    an `async with`. A process that ends without closing is noticed by the others, and the effects
    that it had under way become ambiguous.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "guard",
        lease_seconds: float = 15.0,
        busy_seconds: float = 60.0,
        clock: Clock | None = None,
        probe: Probe | None = None,
        audit: AuditSink | None = None,
    ) -> None:
        self.url = url
        self.observer = Observer()
        self._name = name
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._probe = probe or no_probe
        self._audit = audit or NoAudit()
        self._busy_seconds = busy_seconds
        path_of(url)  # a malformed URL is refused here, and not at the first use
        self._storage: Any = None
        self._guard: Guard | None = None
        self._lease: Lease | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    @classmethod
    def open(cls, url: str) -> ReceiptStore:
        """Return the receipts at a URL, such as `sqlite:///receipts.db`; raises `InvalidUrl`."""
        return cls(url)

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def apply(self, effect: Effect, wait_seconds: float = 0.0) -> Applied:
        """Apply an effect, or return what its receipt holds; see `guard`."""
        deadline = self._clock.monotonic() + wait_seconds
        lost = 0
        while True:
            try:
                return await (await self._ready()).apply(effect)
            except EffectInProgress:
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(_POLL_SECONDS)
            except LeaseLost:
                # Before a send, never after one: go on as another owner, unless that leads nowhere.
                lost += 1
                if lost == _MOST_LEASES:
                    raise StorageError(
                        f"this process lost its lease {lost} times before it could send: give the"
                        " store more lease_seconds, or find out what stops the process"
                    ) from None

    async def list(self, *, ambiguous_only: bool = False, limit: int = 100) -> Sequence[Receipt]:
        """Return receipts as they stand, the newest first.

        What was in flight in a process that is gone is ambiguous.
        """
        await self._doubt_vanished(None)
        return await self._storage.list_receipts(ambiguous_only=ambiguous_only, limit=limit)

    async def settle(
        self, operation_key: str, decision: Decision, *, by: str, why: str, expect_version: int
    ) -> Receipt:
        """Write what a person decided about an ambiguous effect, and return its receipt.

        `Landed(result)` completes it with a JSON result; `NeverWill()` says that it was not
        applied, and `SendAgain()` that nobody knows: after both, the next caller sends.
        `expect_version` is the version of the receipt that the person looked at.

        Durable when it returns: the decision with `by` and `why`, fsynced.
        If it raises: nothing was written. `UnknownEffect`; `StaleDecision` when the receipt has
        changed since, or is not ambiguous; `InvalidPayload` for a result that is no JSON.
        """
        guard = await self._doubt_vanished(operation_key)
        receipt: Receipt | None = await self._storage.read_receipt(operation_key)
        if receipt is None:
            raise UnknownEffect(f"there is no receipt {operation_key} in {self.url}")
        if receipt.state is not ReceiptState.AMBIGUOUS:
            raise StaleDecision(
                f"the receipt {operation_key} is {receipt.state.value}: there is nothing to decide"
            )
        landed = isinstance(decision, Landed)
        settlement = Settlement(
            operation_key=operation_key,
            attempt=receipt.attempt,
            generation=receipt.generation,
            move=Move.COMPLETE if landed else Move.RULE_OUT,
            payload=encode(decision.result) if landed else None,
            problem=None if landed else _problem(decision),
            risk=isinstance(decision, SendAgain),
            by=by,
            why=why,
            version=expect_version,
        )
        settled, _ = await self._storage.settle_effect(settlement)
        await guard.ledger.note_move(receipt, settled, settlement.move)
        return settled

    def owner(self) -> Owner:
        """Return this process as the owner of attempts; raises `LeaseLost` once it is not."""
        if self._lease is None:
            raise LeaseLost("")
        self._lease.check("")
        return Owner(self._lease.holder)

    async def notice_deaths(self) -> None:
        """Find the workers that are gone, so that what they had under way is doubted."""
        await self._storage.sweep(self.owner().holder)

    async def close(self) -> None:
        """Give up the lease and close the file. What is under way elsewhere goes on.

        Durable when it returns: that this process owns nothing more, fsynced.
        """
        lease, self._lease = self._lease, None
        storage, self._storage = self._storage, None
        self._guard = self._loop = None
        if lease is not None:
            await asyncio.to_thread(lease.stop)
            await storage.retire_worker(lease.holder)
        if storage is not None:
            await storage.close()

    async def _ready(self) -> Guard:
        """Open the file and take a lease, unless both stand."""
        if self._guard is not None and self._stands() and self._loop is asyncio.get_running_loop():
            return self._guard
        async with self._opening:
            self._check_loop()
            if self._storage is None:
                self._storage = open_storage(
                    self.url, self._clock, self.observer, self._busy_seconds, self._probe
                )
            if not self._stands():
                await self._take_lease()
            if self._guard is None:
                self._guard = Guard(
                    self._storage, self, self._clock, self.observer, self._probe, self._audit
                )
            return self._guard

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop not in {None, loop}:
            raise EngineClosed(
                "these receipts were opened in another event loop: close them there, or open"
                " others for this one"
            )
        self._loop = loop

    def _stands(self) -> bool:
        try:
            self.owner()
        except LeaseLost:
            return False
        return True

    async def _take_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self.observer.count("perdure_lease_lost_total")
            # Its attempts may go on; whoever finds the lease ended doubts them.
            await asyncio.to_thread(lease.stop)
        asked_at = self._clock.monotonic()
        holder = await self._storage.register_worker(self._name, self._lease_seconds)
        self._lease = Lease(
            self._storage,
            holder,
            self._lease_seconds,
            asked_at,
            self._clock,
            heard=_ignore,
            lost=_nothing,
        )

    async def _doubt_vanished(self, operation_key: str | None) -> Guard:
        guard = await self._ready()
        await self.notice_deaths()
        doubted: int = await self._storage.doubt_vanished(operation_key)
        self.observer.count("perdure_side_effect_ambiguous_total", doubted)
        return guard


async def guard(
    store: ReceiptStore | None,
    identity: OperationIdentity,
    send: Sender,
    *,
    policy: EffectPolicy | None = None,
    arguments: Any = None,
    lookup: Lookup | None = None,
    wait_seconds: float = 0.0,
) -> Any:
    """Apply an effect once, or say honestly that nobody knows, and return what its target said.

    `send` is called with the identity, whose `operation_key` a target that drops repeats is to be
    given, and returns a JSON value. It raises `EffectRejected` when the target refused and
    `EffectNotSent` when nothing was sent; whatever else it raises leaves the effect ambiguous.
    `arguments` is a JSON value that the identity stands for: the same identity with another one
    is refused. `lookup` asks the target what became of an earlier attempt. `wait_seconds` is how
    long to wait for another caller that applies the same effect.

    Without a store, `send` is called and that is all.

    Durable when it returns: the receipt with the answer, fsynced; the same call then answers from
    it. If it raises: `EffectRejected` or `EffectNotSent`, and the effect was not applied;
    `EffectAmbiguous`, and nobody knows; `EffectInProgress` or `EffectConflict`, and this call
    sent nothing; or a `StorageError`, after which the next call finds out.
    """
    if store is None:
        return await send(identity)

    async def sent(identity: OperationIdentity) -> bytes:
        return encode(await send(identity), what="what the target said")

    effect = Effect(
        identity=identity,
        arguments_sha256=hashlib.sha256(encode(arguments, what="arguments")).digest(),
        policy=policy or EffectPolicy(),
        send=sent,
        lookup=lookup,
    )
    return decode((await store.apply(effect, wait_seconds)).payload)


def _problem(decision: NeverWill | SendAgain) -> str:
    if isinstance(decision, SendAgain):
        return "it may be sent again, although it may have been applied"
    return decision.why or "it was not applied"


def _ignore(news: WorkerNews) -> None:
    del news  # it tells of runs, and here are none


def _nothing() -> None:
    """Do nothing: a lease that was lost is noticed where it is used."""
