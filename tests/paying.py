"""A run with one effect, at a target that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import Context, OperationFailed, OperationIdentity, RunState, effect
from perdure.declaration import EffectDeclaration, Reported
from perdure.effects.answer import Decision
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.journal import OperationKind, Outcome
from perdure.receipts import ReceiptStore
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, in_time
from tests.receipts import Audit, Bank

IDENTITY = OperationIdentity(RUN, "call", "bank")
KEY = IDENTITY.operation_key


def charging(bank: Bank, **options: Any) -> Any:
    """Return an effect that sends to a bank, and asks it where that is declared."""

    @effect(target="bank", name="charge", **options)
    async def charge(operation: OperationIdentity, cents: int) -> Any:
        return await bank.send(operation)

    if options.get("support") == "outcome_queryable":
        charge.lookup(bank.lookup)
    return charge


class Paying:
    """A process with one run function, which charges once and tells of a failure."""

    def __init__(
        self, folder: Path, bank: Bank, *, clock: ManualClock | None = None, **options: Any
    ) -> None:
        self.folder = folder
        self.bank = bank
        self.clock = clock or ManualClock()
        self.audit = Audit()
        self.app = app_on(folder, clock=self.clock, lease_seconds=1e6)
        self.app.audit = self.audit
        self.charge = charging(bank, **options)
        self.cents = 5

        @self.app.run(version=1)
        async def paying(context: Context) -> Any:
            try:
                return await context.call(self.charge, self.cents)
            except OperationFailed as failed:
                return [failed.code, failed.message, failed.data]

        self.function = paying

    async def pay(self) -> Any:
        """Start the run or go on with it; return its result, letting time run on."""
        async with self.app:
            handle = await self.app.start(self.function, run_id=RUN)
            return await in_time(self.clock, handle.result())

    async def cut_short(self) -> None:
        """Start the run, and close the App while the bank has been sent to."""
        async with self.app:
            await self.app.start(self.function, run_id=RUN)
            await self.bank.reached.wait()

    async def settle(self, decision: Decision) -> Receipt:
        """Write what a person decided, as another process would."""
        receipt = await self.receipt()
        async with self.store() as store:
            return await store.settle(
                receipt.operation_key,
                decision,
                by="ada",
                why="saw it",
                expect_version=receipt.version,
            )

    async def receipt(self) -> Receipt:
        (receipt,) = await self.receipts()
        return receipt

    async def receipts(self) -> list[Receipt]:
        async with self.store() as store:
            return list(await store.list(run_id=RUN))

    async def state(self) -> RunState:
        async with self.app.connect():
            return (await self.app.find(RUN)).state

    def counted(self, name: str) -> int:
        return self.app.observer.counts[f"perdure_side_effect_{name}_total"]

    def store(self) -> ReceiptStore:
        """Return the receipts as another process would open them."""
        return ReceiptStore(self.app.url, clock=self.clock)


def told(receipt: Receipt) -> tuple[ReceiptState, int, bool]:
    """Return what a test asks of a receipt: its state, its attempts, the risk of a duplicate."""
    return receipt.state, receipt.attempt, receipt.residual_duplicate_risk


async def perform(
    context: Context,
    handler: Callable[[], Any],
    declared: EffectDeclaration,
) -> Outcome:
    """Perform an operation with an effect as an adapter would."""

    async def call() -> Outcome | Reported:
        return handler()

    kind = OperationKind.TOOL_CALL
    performed = await context.perform(kind, "tool", 1, "tools", b"{}", call, effect=declared)
    return performed.outcome
