"""A journal in memory: runs code as a run, again and again, from what it recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.canonical import RECORD_LIMIT_BYTES
from perdure.clock import SystemClock
from perdure.context import Context
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import Journal, NewRecord, TimerRow, row_of, timer_of
from perdure.observe import Observer
from perdure.perform import Performer
from perdure.ports import Ports, no_probe

T = TypeVar("T")


class MemoryJournal:
    """The journal of one run, and the way to execute the run under it."""

    def __init__(self, run_id: str = "run-1") -> None:
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
        journal = Journal(
            rows=[row_of(record, RECORD_LIMIT_BYTES) for record in self.records],
            timers=[*self.timers.values()],
        )
        fence = Fence(self.run_id, "test", 1)
        ports = Ports(self, SystemClock(), Observer(), no_probe)
        performer = Performer(fence, journal, ports, self)
        context = Context(performer, self.started_at)
        context.enter()
        try:
            return await code(context)
        finally:
            self.executed, self.replayed = performer.executed, performer.replayed

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

    def check(self, run_id: str) -> None:
        """Confirm ownership, which nobody else wants."""

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        invocation = record.invocation
        self.timers.pop((invocation.step_id, invocation.sequence), None)
        assert (invocation.step_id, invocation.sequence) not in self.steps()
        self.records.append(record)

    async def begin_timer(
        self, fence: Fence, invocation: Invocation, input_sha256: bytes, wake_at: float
    ) -> None:
        self.timers[invocation.step_id, invocation.sequence] = timer_of(
            invocation, input_sha256, wake_at
        )

    async def read_journal(self, run_id: str) -> Journal:
        raise NotImplementedError

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        raise NotImplementedError

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        return self.record(step_id, sequence).invocation.input_json
