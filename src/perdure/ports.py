from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol, TypeAlias

import msgspec

from perdure.clock import Clock
from perdure.journal.record import Outcome
from perdure.journal.store import JournalStore
from perdure.observe import Observer

Handler: TypeAlias = Callable[[], Awaitable[Outcome]]
"""Performs one operation and returns what it came to."""

Probe: TypeAlias = Callable[[str], None]
"""Is called with the name of each point at which a crash leaves a different state."""


class Ownership(Protocol):
    """What tells whether this process may still write for a run."""

    def check(self, run_id: str) -> None:
        """Raise `LeaseLost` when ownership of a run ended or can no longer be confirmed."""
        ...


class Ports(msgspec.Struct, frozen=True):
    """What performing needs from outside: where records go, the clocks, and who listens.

    `threads` runs functions that are not async; None for the event loop's own.
    """

    store: JournalStore
    clock: Clock
    observer: Observer
    probe: Probe
    threads: Executor | None = None


def no_probe(point: str) -> None:
    """Do nothing at a point."""
    del point
