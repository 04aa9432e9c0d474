from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from benchmarks.ledger import Ledger
from benchmarks.payload import text

_LARGE_BYTES = 1000


class Watcher:
    """Hears of what the work comes to; with a ledger, others hear it too."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.entered_at = self.held_at = 0.0
        self.calls = 0
        self.holds = asyncio.Event()
        self._ledger = ledger

    def entered(self) -> None:
        """A run's function begins, or begins again."""
        self.entered_at = time.perf_counter()

    def called(self, name: str) -> None:
        self.calls += 1
        if self._ledger is not None:
            self._ledger.write("called", name)

    def done(self, name: str) -> None:
        if self._ledger is not None:
            self._ledger.write("done", name)

    def held(self, run_id: str) -> None:
        """The operation that never returns was called."""
        self.held_at = time.perf_counter()
        if self._ledger is not None:
            self._ledger.write("within", run_id, os.getpid(), time.monotonic())
        self.holds.set()


class Peer(ABC):
    """Something else that remembers what was done: opened once in a process.

    `address` is the URL of a database, or where a server listens.
    """

    def __init__(self, address: str, watcher: Watcher) -> None:
        self.address = address
        self.watcher = watcher

    @abstractmethod
    async def open(self) -> None:
        """Begin to execute runs, those that were left by others too where it does that."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def settings(self) -> str:
        """Say with which settings it commits, read from its own connection where there is one."""

    @abstractmethod
    async def run(self, run_id: str, operations: int, size: int) -> int:
        """Perform `work` as a run that nobody began before, and return its result."""

    @abstractmethod
    async def go_on(self, run_id: str, operations: int, size: int) -> int:
        """Perform it, or what is left of it, and return its result."""

    @abstractmethod
    async def hold(self, run_id: str, operations: int) -> None:
        """Perform it, and behind it an operation that never returns."""

    @abstractmethod
    async def replay(self, run_id: str, operations: int) -> float:
        """Repeat what was recorded up to the operation that never returns; return the seconds."""

    @abstractmethod
    async def converse(self, turns: int) -> None:
        """Hold a conversation as one run."""

    @abstractmethod
    async def converse_by_turns(self, turns: int) -> None:
        """Hold it as a run a turn, with the history passed in."""

    async def until_held(self) -> float:
        """Wait until what was recorded is repeated; return the seconds since its code began."""
        await asyncio.wait_for(self.watcher.holds.wait(), 120)
        return self.watcher.held_at - self.watcher.entered_at


Touch = Callable[[str, str, int], Awaitable[str]]


async def work(watcher: Watcher, touch: Touch, run_id: str, operations: int, size: int) -> int:
    """Call operations one after another; return how many answered as they should."""
    watcher.entered()
    returned = 0
    for number in range(operations):
        name = f"{run_id}.{number}"
        seed = seed_of(number, size)
        returned += await touch(name, text(size, seed), seed) == answer(size, seed)
        watcher.done(name)
    return returned


def seed_of(number: int, size: int) -> int:
    """Return the seed of an operation's text: 0 where all are the same."""
    return 2 * number if size > _LARGE_BYTES else 0


def answer(size: int, seed: int) -> str:
    """Return what an operation answers: large payloads are never given back as they came."""
    return text(size, seed + 1 if seed else 0)
