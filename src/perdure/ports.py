from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol, TypeAlias

import msgspec

from perdure.clock import Clock
from perdure.codec import Codec
from perdure.declaration import KnownEffects, Reported
from perdure.effects.audit import AuditSink
from perdure.effects.receipt import Receipt
from perdure.effects.store import Receipts, Settlement
from perdure.fence import Fence
from perdure.journal.record import Outcome
from perdure.journal.store import JournalStore, NewRecord
from perdure.observe import Observer

Handler: TypeAlias = Callable[[], Awaitable[Outcome | Reported]]
"""Performs one operation and returns what it came to."""

Probe: TypeAlias = Callable[[str], None]
"""Is called with the name of each point at which a crash leaves a different state."""

Secrets: TypeAlias = Callable[[str], str]
"""Returns the secret of a name."""


class Created(Protocol):
    """Of a run, when it was created, in wall seconds, UTC."""

    @property
    def created_at(self) -> float:
        """When it was created."""
        ...


class Store(JournalStore, Receipts, Protocol):
    """The port through which a run keeps what it records and what it did to the world."""

    async def settle_record(
        self, fence: Fence, settlement: Settlement, record: NewRecord
    ) -> tuple[Receipt, bool]:
        """Move a receipt and write the record that goes with it, both or neither.

        Returns the receipt and whether the move landed.
        Durable when it returns: receipt and record, fsynced, if the move landed.
        If it raises: `LeaseLost` when the fence no longer holds, or a `StorageError`; nothing was
        written.
        """
        ...

    async def read_run(self, run_id: str) -> Created | None:
        """Return a run, or None when there is none of that id."""
        ...


class Ownership(Protocol):
    """What tells whether this process may still write for a run."""

    def check(self, run_id: str) -> None:
        """Raise `LeaseLost` when ownership of a run ended or can no longer be confirmed."""
        ...


class Ports(msgspec.Struct, frozen=True):
    """What performing needs from outside: where records go, the clocks, and who listens.

    `threads` runs functions that are not async; None for the event loop's own. `known` are the
    effects that this process can ask about. `codec` writes and reads the values of user code.
    `secrets` resolves the names of secrets; None where nobody does.
    """

    store: Store
    clock: Clock
    observer: Observer
    probe: Probe
    threads: Executor | None = None
    audit: AuditSink | None = None
    known: KnownEffects = msgspec.field(default_factory=KnownEffects)
    codec: Codec = msgspec.field(default_factory=Codec)
    secrets: Secrets | None = None


def no_probe(point: str) -> None:
    """Do nothing at a point."""
    del point
