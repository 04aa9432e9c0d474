from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.errors import InvalidOptions, UnknownQueue
from perdure.queued import check_queue


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue lets through; None where it does not bound.

    `concurrency` bounds the runs of the queue that are executed at once by all workers together,
    and `key_concurrency` those with the same key; runs without a key are not bounded by it. No more
    than `rate_runs` runs begin within any `rate_seconds`.
    """

    concurrency: int | None = None
    key_concurrency: int | None = None
    rate_runs: int | None = None
    rate_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing or everything: `InvalidOptions`."""
        for name in ("concurrency", "key_concurrency", "rate_runs"):
            count = getattr(self, name)
            if count is not None and (type(count) is not int or not 0 < count < 1 << 31):
                raise InvalidOptions(f"a queue's {name} is a whole number from 1, not {count!r}")
        if (self.rate_runs is None) != (self.rate_seconds is None):
            raise InvalidOptions("a queue's rate is a number of runs and a number of seconds")
        if self.rate_seconds is not None and not 0 < self.rate_seconds < math.inf:
            raise InvalidOptions(f"a rate has a finite time over 0, not {self.rate_seconds!r}")


class QueueRow(msgspec.Struct, frozen=True):
    """A queue as it stands.

    `limits` are as the worker that was opened last declares them. `pending` runs wait for a worker,
    and `running` ones are executed; those that sleep or are suspended are neither.
    """

    name: str
    limits: QueueLimits
    paused: bool
    pending: int
    running: int


class QueueStore(Protocol):
    """The port that keeps queues and what they let through."""

    async def declare_queue(self, name: str, limits: QueueLimits) -> None:
        """Write a queue, or the limits of one that is there; what it holds stays.

        Durable when it returns: the queue, fsynced.
        """
        ...

    async def list_queues(self) -> Sequence[QueueRow]:
        """Return the queues, by name."""
        ...

    async def pause_queue(self, name: str) -> bool:
        """Let no run of a queue be claimed until it is resumed; return whether there is one.

        Durable when it returns: the pause, fsynced.
        """
        ...

    async def resume_queue(self, name: str) -> bool:
        """Let the runs of a queue be claimed again; return whether there is one.

        Durable when it returns: the resumption, fsynced.
        """
        ...


class DeclaredQueues:
    """The queues of an App, by name, and those that its store is known to have."""

    def __init__(self) -> None:
        self._declared: dict[str, QueueLimits] = {}
        self._known: set[str] = set()

    def add(self, name: str, limits: QueueLimits) -> None:
        """Add a queue; raises `InvalidOptions` where there is one of its name."""
        if check_queue(name) in self._declared:
            raise InvalidOptions(f"there is a queue {name!r} already: declare it once")
        self._declared[name] = limits

    async def open(self, store: QueueStore, *, work: bool) -> None:
        """Take a store for that of the App; a worker writes what is declared.

        Whoever does not work leaves the limits of the workers as they are.

        Durable when it returns: the queues of a worker, fsynced.
        """
        self._known = set()
        for name, limits in self._declared.items() if work else ():
            await store.declare_queue(name, limits)
            self._known.add(name)

    async def check(self, store: QueueStore, name: str) -> None:
        """Raise `UnknownQueue` for a queue that is neither declared nor there. None ever goes.

        Durable when it returns: the queue, fsynced.
        """
        if name in self._known:
            return
        self._known = {row.name for row in await store.list_queues()}
        if name not in self._known:
            if name not in self._declared:
                raise UnknownQueue(name)
            await store.declare_queue(name, self._declared[name])
            self._known.add(name)
