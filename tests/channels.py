"""Stored channels, each on a store of its own as a process has it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from perdure.channels.stored import StoredChannels
from perdure.clock import Clock, SystemClock
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.urls import location_of

_TURN_SECONDS: Final = 0.001


class TurnClock:
    """A clock that goes on by a millisecond in each turn of the loop in which anybody sleeps."""

    def __init__(self) -> None:
        self._elapsed = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        slept, ends = self._elapsed, self._elapsed + seconds
        while slept < ends:
            await asyncio.sleep(0)
            slept += _TURN_SECONDS
            self._elapsed = max(self._elapsed, slept)


class Failing:
    """A store whose methods fail when a test says so, before they have done anything or after."""

    def __init__(self, store: Any) -> None:
        self.failing: defaultdict[str, list[Exception]] = defaultdict(list)
        """By method: what the next calls raise instead of doing anything."""
        self.doubted: defaultdict[str, list[Exception]] = defaultdict(list)
        """By method: what the next calls raise when it is done."""
        self.calls: list[tuple[str, Any]] = []
        """The method and the first argument of every call so far."""
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments[0]))
            if self.failing[name]:
                raise self.failing[name].pop(0)
            found = await method(*arguments)
            if self.doubted[name]:
                raise self.doubted[name].pop(0)
            return found

        return call


class Process:
    """A store, and channels on what was put `around` it."""

    def __init__(self, store: Any, around: Any, clock: Clock) -> None:
        self.store = store
        self.around = around
        self.channels = StoredChannels(around, clock)
        self.channel = self.channels.channel


@asynccontextmanager
async def opened(
    url: str,
    processes: int = 1,
    clock: Clock | None = None,
    around: Callable[[Any], Any] = lambda store: store,
) -> AsyncGenerator[list[Process]]:
    """Open stores on one place, and channels on what is put `around` each."""
    clock, place = clock or SystemClock(), location_of(url)
    async with AsyncExitStack() as stack:
        every: list[Process] = []
        for _ in range(processes):
            store = await place.open(clock, Observer(), 20.0, no_probe, create=True)
            stack.push_async_callback(store.close)
            process = Process(store, around(store), clock)
            await process.channels.open()
            stack.push_async_callback(process.channels.close)
            every.append(process)
        yield every
