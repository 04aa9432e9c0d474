"""A journal and receipts in memory: runs code as a run, again and again, from what it recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from perdure.canonical import RECORD_LIMIT_BYTES
from perdure.clock import SystemClock
from perdure.context import Context
from perdure.effects.receipt import MOVES, Receipt, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, NewRecord, TimerRow, row_of, timer_of
from perdure.observe import Observer
from perdure.perform import Performer
from perdure.ports import Ports, no_probe

T = TypeVar("T")


class MemoryReceipts:
    """The receipts of one run; what an execution leaves in flight is in doubt for the next."""

    def __init__(self) -> None:
        self.receipts: dict[str, Receipt] = {}

    async def read_receipt(self, operation_key: str) -> Receipt | None:
        return self.receipts.get(operation_key)

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        found = self.receipts.get(claim.operation_key)
        if found is None or found.state is ReceiptState.FAILED:
            return self._begin(claim, 1 if found is None else found.attempt + 1), True
        if found.state is ReceiptState.IN_FLIGHT and found.generation < claim.owner.generation:
            found = self._put(found, state=ReceiptState.AMBIGUOUS, problem="it vanished")
        return found, False

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        begun = self._begin(claim, receipt.attempt + 1)
        return self._put(begun, earlier_unknown=unknown, residual_duplicate_risk=risk), True

    async def claim_lookup(
        self, receipt: Receipt, owner: Owner, hold_seconds: float
    ) -> tuple[Receipt, bool]:
        return receipt, True

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        found = self.receipts[settlement.operation_key]
        state = MOVES.get((found.state, settlement.move))
        if state is None:
            return found, False
        settled = self._put(
            found, state=state, payload=settlement.payload, problem=settlement.problem
        )
        return settled, True

    def _begin(self, claim: EffectClaim, attempt: int) -> Receipt:
        identity = claim.identity
        self.receipts[claim.operation_key] = receipt = Receipt(
            operation_key=claim.operation_key,
            run_id=identity.run_id,
            idempotency_key=identity.idempotency_key,
            target=identity.target,
            ordinal=identity.ordinal,
            support=claim.support,
            arguments_sha256=claim.arguments_sha256,
            state=ReceiptState.IN_FLIGHT,
            attempt=attempt,
            holder=claim.owner.holder,
            generation=claim.owner.generation,
            version=1,
            first_claimed_at=0.0,
            claimed_at=0.0,
        )
        return receipt

    def _put(self, receipt: Receipt, **changes: Any) -> Receipt:
        changed = msgspec.structs.replace(receipt, version=receipt.version + 1, **changes)
        self.receipts[receipt.operation_key] = changed
        return changed


class MemoryJournal(MemoryReceipts):
    """The journal of one run, and the way to execute the run under it."""

    def __init__(self, run_id: str = "run-1") -> None:
        super().__init__()
        self.executions = 0
        self.run_id = run_id
        self.records: list[NewRecord] = []
        self.timers: dict[tuple[str, int], TimerRow] = {}
        self.started_at = 1_700_000_000.0
        self.executed = 0
        self.replayed = 0

    def run(self, code: Callable[[Context], Awaitable[T]]) -> T:
        """Execute code as the run, from what the journal holds."""
        return asyncio.run(self.execute(code))

    async def execute(self, code: Callable[[Context], Awaitable[T]]) -> T:
        journal = await self.read_journal(self.run_id)
        self.executions += 1
        fence = Fence(self.run_id, "test", self.executions)
        store: Any = self  # as much of a store as a run needs
        ports = Ports(store, SystemClock(), Observer(), no_probe)
        performer = Performer(fence, journal, ports, self)
        context = Context(performer, self.started_at)
        context.enter()
        try:
            return await code(context)
        finally:
            self.executed, self.replayed = performer.executed, performer.replayed

    async def read_journal(self, run_id: str) -> Journal:
        return Journal(
            rows=[row_of(record, RECORD_LIMIT_BYTES) for record in self.records],
            timers=[*self.timers.values()],
        )

    def steps(self) -> list[tuple[str, int]]:
        """Return the place of every record, in order of place."""
        return sorted(
            (record.invocation.step_id, record.invocation.sequence) for record in self.records
        )

    def inputs(self) -> dict[str, bytes]:
        """Return the handler and the exact input under every key."""
        return {
            f"{record.invocation.stable_key} {record.invocation.handler_id}": (
                record.invocation.input_json
            )
            for record in self.records
        }

    def record(self, step_id: str, sequence: int = 1) -> NewRecord:
        """Return one record."""
        (found,) = [
            record
            for record in self.records
            if (record.invocation.step_id, record.invocation.sequence) == (step_id, sequence)
        ]
        return found

    def receipt(self, target: str) -> Receipt:
        """Return the one receipt for a target."""
        (found,) = [each for each in self.receipts.values() if each.target == target]
        return found

    def check(self, run_id: str) -> None:
        """Confirm ownership, which nobody else wants."""

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        invocation = record.invocation
        self.timers.pop((invocation.step_id, invocation.sequence), None)
        assert (invocation.step_id, invocation.sequence) not in self.steps()
        self.records.append(record)

    async def settle_record(
        self, fence: Fence, settlement: Settlement, record: NewRecord
    ) -> tuple[Receipt, bool]:
        receipt, landed = await self.settle_effect(settlement)
        if landed:
            await self.append_record(fence, record)
        return receipt, landed

    async def begin_timer(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        awaits: str | None = None,
    ) -> None:
        self.timers[invocation.step_id, invocation.sequence] = timer_of(
            invocation, input_sha256, wake_at, awaits
        )

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        raise NotImplementedError

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        return self.record(step_id, sequence).invocation.input_json
