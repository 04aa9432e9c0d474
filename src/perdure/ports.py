from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from perdure.approvals import ApprovalStore
from perdure.clock import Clock
from perdure.codec import Codec
from perdure.declaration import KnownEffects, Reported
from perdure.effects.audit import AuditSink
from perdure.effects.receipt import Receipt
from perdure.effects.store import Receipts, Settlement
from perdure.fence import Fence
from perdure.inbox import InboxStore
from perdure.journal.record import Outcome
from perdure.journal.store import JournalStore, NewRecord
from perdure.observe import Observer
from perdure.queued import Queued

if TYPE_CHECKING:
    from perdure.session.channel import Channel

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


class Store(JournalStore, Receipts, InboxStore, ApprovalStore, Protocol):
    """The port through which a run keeps what it records and did to the world, and gets mail."""

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


class Children(Protocol):
    """What starts runs from inside of a run, and tells how they ended."""

    async def start(
        self,
        parent: str,
        run_id: str,
        function: Callable[..., Any] | str,
        input_json: bytes | None,
        version: int | None,
        deadline_seconds: float | None,
        *,
        queued: Queued | None,
    ) -> None:
        """Start a run under an id, unless that was done before.

        Durable when it returns: the run, fsynced.
        If it raises: `UnknownFunction`, `UnknownQueue`, `RunConflict`, or a `StorageError`.
        """
        ...

    async def end_of(self, run_id: str) -> Outcome:
        """Return what a run that has ended came to: its output, or why there is none."""
        ...

    async def ended(self, run_id: str) -> Outcome | None:
        """Return what a run came to, or None while it has not ended; raises `UnknownRun`."""
        ...

    async def family(self, run_id: str) -> Sequence[str]:
        """Return a run and all that were started below it."""
        ...

    def name_of(self, function: Callable[..., Any] | str) -> str:
        """Return the name under which a run function is registered; raises `UnknownFunction`."""
        ...


class Channels(Protocol):
    """Where the messages of sessions are, by the name of a session."""

    def channel(self, session: str, client_id: str, fence: Fence | None = None) -> Channel:
        """Return a session as a client has it; the writes of a run carry its fence."""
        ...


class Ports(msgspec.Struct, frozen=True):
    """What performing needs from outside: where records go, the clocks, and who listens.

    `threads` runs functions that are not async; None for the event loop's own. `known` are the
    effects that this process can ask about. `codec` writes and reads the values of user code.
    `secrets` resolves the names of secrets, `children` starts runs from inside of a run, and
    `channels` are where people see what runs do; None where nobody does.
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
    children: Children | None = None
    channels: Channels | None = None


def no_probe(point: str) -> None:
    """Do nothing at a point."""
    del point
