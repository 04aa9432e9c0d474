"""A store of receipts in a folder, and a target that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure.effects.answer import Answer, Unknown
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.store import EffectClaim, Owner
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.engine.store import RunStore
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.receipts import ReceiptStore, guard
from perdure.testing.manual_clock import ManualClock
from perdure.urls import location_of
from tests.harness import in_time, sql
from tests.storages import url_of

CHARGE = OperationIdentity("invoice-17", "charge", "bank")
KEY = CHARGE.operation_key
LEASE_SECONDS = 36_000.0

ASK = EffectPolicy()
RETRY = EffectPolicy(on_ambiguous=OnAmbiguous.RETRY)
TELL = EffectPolicy(on_ambiguous=OnAmbiguous.TELL)
IDEMPOTENT = EffectPolicy(support=SideEffectSupport.IDEMPOTENT)
QUERYABLE = EffectPolicy(
    support=SideEffectSupport.OUTCOME_QUERYABLE, timeout_seconds=60.0, settle_seconds=5.0
)


class Audit:
    """Keeps audit records in a list."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    async def write(self, facts: Mapping[str, Any]) -> None:
        self.records.append(facts)


class Bank:
    """A target: each send and each lookup takes the next of what a test gave it."""

    def __init__(self, *sends: Any, answers: list[Any] | None = None) -> None:
        self.sends = list(sends)
        self.answers = list(answers or [])
        self.sent = 0
        self.keys: list[str] = []
        self.asked = 0
        self.reached = asyncio.Event()

    async def send(self, identity: OperationIdentity) -> Any:
        self.sent += 1
        self.keys.append(identity.operation_key)
        return await self._take(self.sends)

    async def lookup(self, identity: OperationIdentity) -> Answer:
        self.asked += 1
        return await self._take(self.answers)

    async def _take(self, script: list[Any]) -> Any:
        self.reached.set()
        step = script.pop(0)
        if isinstance(step, asyncio.Event):
            await step.wait()
            step = script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step() if callable(step) else step


class Shop:
    """A process with receipts of its own in the store of a folder, by a clock that tests turn."""

    def __init__(self, folder: Path, clock: ManualClock, **options: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.audit = Audit()
        self.points: list[str] = []
        extra = {
            "probe": self.points.append,
            "lease_seconds": LEASE_SECONDS,
            "audit": self.audit,
            **options,
        }
        self.store = ReceiptStore(url_of(folder), clock=clock, **extra)

    async def pay(
        self,
        bank: Bank,
        policy: EffectPolicy = ASK,
        *,
        arguments: Any = 5,
        wait_seconds: float = 0,
        lookup: bool | None = None,
    ) -> Any:
        asks = policy.support is SideEffectSupport.OUTCOME_QUERYABLE if lookup is None else lookup
        return await guard(
            self.store,
            CHARGE,
            bank.send,
            policy=policy,
            arguments=arguments,
            lookup=bank.lookup if asks else None,
            wait_seconds=wait_seconds,
        )

    async def pay_in_time(self, bank: Bank, policy: EffectPolicy, **options: Any) -> Any:
        """Pay, and let the clock run on to whatever is slept for."""
        return await in_time(self.clock, self.pay(bank, policy, **options))

    async def receipt(self) -> Receipt:
        (receipt,) = await self.store.list()
        return receipt

    def counted(self, name: str) -> int:
        return self.store.observer.counts[f"perdure_side_effect_{name}_total"]


@asynccontextmanager
async def shop(folder: Path, **options: Any) -> AsyncGenerator[Shop]:
    """Open the receipts of a folder."""
    it = Shop(folder, options.pop("clock", None) or ManualClock(), **options)
    try:
        yield it
    finally:
        await it.store.close()


class Receipts:
    """The receipts of a store without a guard, with workers that own attempts."""

    def __init__(self, storage: RunStore, manual: ManualClock) -> None:
        self.storage = storage
        self.clock = storage.clock
        self.advance = manual.advance

    async def owner(self) -> Owner:
        return Owner(await self.storage.register_worker("w", LEASE_SECONDS))

    def claim(self, owner: Owner, **changes: Any) -> EffectClaim:
        fields: dict[str, Any] = {
            "operation_key": KEY,
            "identity": CHARGE,
            "support": SideEffectSupport.AT_LEAST_ONCE,
            "arguments_sha256": b"5",
            "owner": owner,
            "settle_seconds": 5.0,
            "resend_after": None,
            **changes,
        }
        return EffectClaim(**fields)

    def claim_of(self, owner: Owner, identity: OperationIdentity) -> EffectClaim:
        return self.claim(owner, identity=identity, operation_key=identity.operation_key)


@asynccontextmanager
async def receipts(folder: Path) -> AsyncGenerator[Receipts]:
    """Open a store without a guard."""
    clock = ManualClock()
    place = location_of(url_of(folder))
    storage = await place.open(clock, Observer(), 20.0, no_probe, create=True)
    try:
        yield Receipts(storage, clock)
    finally:
        await storage.close()


def answering(told: Callable[[], Answer] | Answer = Unknown()) -> Bank:  # noqa: B008 - frozen
    """Return a bank whose send vanishes and whose lookups all say one thing."""
    return Bank(ConnectionResetError("gone"), answers=[told] * 20)


async def doubtful(it: Shop, policy: EffectPolicy) -> Receipt:
    """Leave an attempt in doubt, as a process that vanished while it was sending would."""
    async with shop(it.folder, clock=it.clock) as old:
        bank = Bank(asyncio.Event())
        task = asyncio.create_task(old.pay(bank, policy))
        await bank.reached.wait()
        sql(it.folder, "UPDATE workers SET gone = 1 WHERE holder = ?", old.store.owner().holder)
        receipt = await it.receipt()
        assert receipt.state is ReceiptState.AMBIGUOUS
        task.cancel()
        await asyncio.wait([task])
    return receipt
