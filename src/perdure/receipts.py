from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Self

from perdure.background import Background
from perdure.clock import Clock, SystemClock
from perdure.codec import Codec, Named
from perdure.effects.answer import Decision, Landed, Lookup, NeverWill, SendAgain
from perdure.effects.audit import AuditSink
from perdure.effects.effect import Effect, Overdue, Send
from perdure.effects.guard import Applied, Guard
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import DecisionRow, Owner, Settlement
from perdure.effects.support import EffectPolicy
from perdure.effects.watch import Watch
from perdure.encryption import Keyring, vault_of
from perdure.engine.lease import Lease
from perdure.engine.workers import WorkerNews
from perdure.errors import EffectInProgress, LeaseLost, StaleDecision, StorageError, UnknownEffect
from perdure.functions import check_performable
from perdure.home import Home
from perdure.observe import Observer
from perdure.ports import Probe, no_probe
from perdure.secrets import SecretRef
from perdure.urls import location_of, shown
from perdure.wording import printable

_POLL_SECONDS: Final = 0.02
_MOST_LEASES: Final = 5

ANSWER: Final = "what the target said"

Sender = Callable[[OperationIdentity], Awaitable[Any]]


class ReceiptStore:
    """Receipts on their own: for a script, a queue's task, or another engine's activity.

    Opened by its first use, for the event loop of that use, and closed by `close` or at the end of
    an `async with`. For `guard_sync` it keeps a loop of its own, from the first use to `close_sync`
    or the end of a `with`; before a fork that one is closed, unless something is under way, and
    parent and child open it again. A process that ends without closing is noticed by the others,
    and the effects that it had under way become ambiguous. Without `create` there has to be a file,
    or its first use raises `StorageMissing`. `encryption` and `types` are those of an `App`.
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
        encryption: Keyring | None = None,
        types: Sequence[Named] = (),
        create: bool = True,
    ) -> None:
        self.url = url
        self.shown_url = shown(url)
        self.codec = Codec((SecretRef, *types))
        self.observer = Observer()
        self._name = name
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._probe = probe or no_probe
        self._audit = audit
        opens = (self._clock, self.observer, busy_seconds, self._probe)
        # A malformed URL is refused here, and not at the first use.
        open_ = location_of(url).open
        self._open = partial(open_, *opens, create=create, vault=vault_of(encryption))
        self._storage: Any = None
        self._guard: Guard | None = None
        self._lease: Lease | None = None
        self._opening = asyncio.Lock()
        self._home = Home(self._close_all, self._forsake)
        self._inherited: Sequence[object] = ()

    @classmethod
    def open(cls, url: str, **options: Any) -> ReceiptStore:
        """Return the receipts at a URL, such as `sqlite:///receipts.db`; raises `InvalidUrl`."""
        return cls(url, **options)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        try:
            self.background().call(lambda _: self._opened())
        except BaseException:
            self.close_sync()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close_sync()

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

    async def list(
        self, *, ambiguous_only: bool = False, limit: int = 100, run_id: str | None = None
    ) -> Sequence[Receipt]:
        """Return receipts as they stand, the newest first; of one run, if given.

        What was in flight in a process that is gone is ambiguous.
        """
        await self._doubt_vanished(None)
        return await self._storage.list_receipts(
            ambiguous_only=ambiguous_only, limit=limit, run_id=run_id
        )

    async def matching(self, prefix: str, limit: int = 10) -> Sequence[Receipt]:
        """Return the receipts whose operation key begins with a text, in the order of the keys.

        What was in flight in a process that is gone is ambiguous. Raises `EffectErased` for the
        whole key of one that was erased.
        """
        await self._doubt_vanished(None)
        found: Sequence[Receipt] = await self._storage.match_receipts(prefix, limit)
        if not found:
            await self._storage.read_receipt(prefix)
        return found

    async def decisions(self, operation_key: str) -> Sequence[DecisionRow]:
        """Return what people decided about an effect, oldest first."""
        await self._opened()
        return await self._storage.list_decisions(operation_key)

    async def watch(self) -> Watch:
        """Return what tells how receipts change from now on."""
        await self._opened()
        return Watch(self._storage, self._storage.changed, lambda: self._doubt_vanished(None))

    async def settle(
        self, operation_key: str, decision: Decision, *, by: str, why: str, expect_version: int
    ) -> Receipt:
        """Write what a person decided about an ambiguous effect, and return its receipt.

        `Landed(result)` completes it with a result; `NeverWill()` says that it was not
        applied, and `SendAgain()` that nobody knows: after both, the next caller sends.
        `expect_version` is the version of the receipt that the person looked at; that its target
        has been asked since, and could not say, does not matter.

        A run that is parked because nobody knew of the effect waits for a worker again.

        Durable when it returns: the decision with `by` and `why`, and the run's state, fsynced.
        If it raises: nothing was written. `UnknownEffect`; `StaleDecision` when the receipt has
        changed since, or is not ambiguous; `InvalidPayload` for a result that cannot be stored.
        """
        guard = await self._doubt_vanished(operation_key)
        receipt: Receipt | None = await self._storage.read_receipt(operation_key)
        if receipt is None:
            raise UnknownEffect(f"there is no receipt {operation_key} in {self.shown_url}")
        if receipt.state is not ReceiptState.AMBIGUOUS:
            raise StaleDecision(
                f"the receipt {operation_key} is {receipt.state.value} with version"
                f" {receipt.version}{_decided(receipt)}: there is nothing to decide"
            )
        landed = isinstance(decision, Landed)
        settlement = Settlement(
            operation_key=operation_key,
            attempt=receipt.attempt,
            generation=receipt.generation,
            move=Move.COMPLETE if landed else Move.RULE_OUT,
            payload=self.codec.encode(decision.result) if landed else None,
            problem=None if landed else _problem(decision),
            risk=isinstance(decision, SendAgain),
            by=printable(by),
            why=printable(why),
            version=receipt.seen_as(expect_version),
        )
        settled, _ = await self._storage.settle_effect(settlement)
        await guard.ledger.note_move(receipt, settled, settlement.move)
        return settled

    async def erase(self, run_id: str, *, by: str, why: str) -> int:
        """Delete the receipts of a run, or of whatever else they belong to; return how many.

        A tombstone stays for each, and its effect is never sent again: `EffectErased`.

        Durable when it returns: the tombstones and the deletions, fsynced.
        If it raises: `NotErasable` for effects that somebody has to settle first, or for a run of
        that id that has not ended, and nothing was deleted. After a `StorageError` or a crash,
        erasing again goes on.
        """
        await self._doubt_vanished(None)
        return await self._storage.erase_receipts(run_id, by=by, why=why)

    def owner(self) -> Owner:
        """Return this process as the owner of attempts; raises `LeaseLost` once it is not."""
        if self._lease is None:
            raise LeaseLost("")
        self._lease.check("")
        return Owner(self._lease.holder)

    async def notice_deaths(self) -> None:
        """Find the workers that are gone, so that what they had under way is doubted."""
        # Who only looks is no worker, and has no lease to spare.
        await self._storage.sweep("" if self._lease is None else self._lease.holder)

    async def close(self) -> None:
        """Give up the lease and close the file. What is under way elsewhere goes on.

        Durable when it returns: that this process owns nothing more, fsynced.
        """
        self._home.leave()
        lease, self._lease = self._lease, None
        storage, self._storage = self._storage, None
        self._guard = None
        self._opening = asyncio.Lock()  # who waited for one belongs to its loop
        if lease is not None:
            await asyncio.to_thread(lease.stop)
            await storage.retire_worker(lease.holder)
        if storage is not None:
            await storage.close()

    def close_sync(self) -> None:
        """Do as `close`, and end the loop that served `guard_sync`; without one, do nothing.

        An audit that can be closed is closed too: what was opened in that loop ends with it.

        A call under way in another thread raises `EngineClosed` when its function has ended; what
        that sent is ambiguous. When the interpreter exits, in `atexit`, it is too late to close.
        """
        self._home.end()

    def background(self) -> Background:
        """Return the loop that serves `guard_sync`; raises `EngineClosed` where it cannot."""
        return self._home.keep()

    async def _ready(self) -> Guard:
        """Open the file and take a lease, unless both stand."""
        guard = await self._opened()
        if not self._stands():
            async with self._opening:
                if not self._stands():
                    await self._take_lease()
        return guard

    async def _opened(self) -> Guard:
        """Open the file, unless it is open; who sends nothing needs no lease."""
        if self._guard is not None and self._home.here():
            return self._guard
        async with self._opening:
            self._home.enter()
            if self._storage is None:
                self._storage = await self._open()
                self._clock = self._storage.clock
            if self._guard is None:
                self._guard = Guard(
                    self._storage, self, self._clock, self.observer, self._probe, self._audit
                )
            return self._guard

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
            lost=lambda: None,  # it is noticed where it is used
        )

    async def _close_all(self) -> None:
        await self.close()
        # Who has no loop cannot close what was opened in this one.
        close = getattr(self._audit, "close", None)
        if close is not None:
            await close()

    def _forsake(self) -> None:
        self._inherited = (self._storage, self._lease)
        self._storage = self._guard = self._lease = None

    async def _doubt_vanished(self, operation_key: str | None) -> Guard:
        guard = await self._opened()
        await self.notice_deaths()
        await guard.ledger.doubt_vanished(operation_key)
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
    given, and returns what a run's operation may. It raises `EffectRejected` when the target
    refused and `EffectNotSent` when nothing was sent; whatever else it raises leaves the effect
    ambiguous.
    `arguments` is a value that the identity stands for: the same identity with another one
    is refused. `lookup` asks the target what became of an earlier attempt. `wait_seconds` is how
    long to wait for another caller that applies the same effect.

    Without a store, `send` is called and that is all.

    Durable when it returns: the receipt with the answer, fsynced; the same call then answers from
    it. If it raises: `EffectRejected` or `EffectNotSent`, and the effect was not applied;
    `EffectAmbiguous`, and nobody knows; `EffectInProgress` or `EffectConflict`, and this call
    sent nothing; `InvalidFunction` for an `outcome_queryable` target without a `lookup`; or a
    `StorageError`, after which the next call finds out.
    """
    check_performable(send)
    if store is None:
        return await send(identity)

    async def sent(identity: OperationIdentity) -> bytes:
        return store.codec.encode(await send(identity), what=ANSWER, function=send)

    stood_for = store.codec.encode(arguments, what="arguments", function=send)
    effect = effect_of(store.codec, identity, sent, policy, stood_for, lookup)
    payload = (await store.apply(effect, wait_seconds)).payload
    return store.codec.decode(payload, what=ANSWER, function=send)


def effect_of(
    codec: Codec,
    identity: OperationIdentity,
    send: Send,
    policy: EffectPolicy | None,
    arguments: bytes,
    lookup: Lookup | None,
    *,
    overdue: Overdue | None = None,
) -> Effect:
    """Return the effect that a caller of `guard` asks for."""
    return Effect(
        identity=identity,
        arguments_sha256=hashlib.sha256(arguments).digest(),
        policy=policy or EffectPolicy(),
        send=send,
        lookup=lookup,
        overdue=overdue,
        encode=codec.encode,
    )


def _decided(receipt: Receipt) -> str:
    return "" if receipt.decided_by is None else f", last decided by {receipt.decided_by}"


def _problem(decision: NeverWill | SendAgain) -> str:
    again = "it may be sent again, although it may have been applied"
    return again if isinstance(decision, SendAgain) else printable(decision.why) or "not applied"


def _ignore(news: WorkerNews) -> None:
    del news  # it tells of runs, and here are none
