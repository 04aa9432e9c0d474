"""A clock that stands still until it is turned."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Sequence
from typing import Final

_ROUNDING_SECONDS: Final = 1e-9
_Sleeper = tuple[float, int, asyncio.Future[None]]


class ManualClock:
    """A clock that stands still until a test turns it, so that nothing depends on real time.

    Pass it as `App(url, clock=ManualClock())`. Leases are timed by it too: give the worker a
    `lease_seconds` longer than what you advance at once. It belongs to one event loop; other
    threads may only read it.
    """

    def __init__(self, now: float = 1_700_000_000.0, monotonic: float = 0.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._numbers = itertools.count()
        self._sleepers: list[_Sleeper] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return wall time as seconds since the epoch, UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds advanced so far, counted from the clock's start."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been advanced by `seconds`."""
        if seconds <= 0:
            return await asyncio.sleep(0)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (self._monotonic + seconds, next(self._numbers), woken)
        heapq.heappush(self._sleepers, sleeper)
        self._tell_those_who_wait()
        try:
            return await woken
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks and wake who has slept enough, earliest first."""
        self._now += seconds
        self._monotonic += seconds
        due = self._monotonic + _ROUNDING_SECONDS
        while self._sleepers and self._sleepers[0][0] <= due:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def jump(self, seconds: float) -> None:
        """Move wall time alone, forth or back, as when somebody sets the clock."""
        self._now += seconds

    @property
    def sleeping(self) -> Sequence[float]:
        """The seconds that each sleeper still has to sleep, ascending."""
        return [wake_at - self._monotonic for wake_at, _, _ in sorted(self._sleepers)]

    async def until_sleeping(self, count: int = 1) -> None:
        """Return as soon as at least `count` tasks sleep on this clock."""
        if len(self._sleepers) >= count:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, reached))
        await reached

    def _tell_those_who_wait(self) -> None:
        for entry in list(self._waiting):
            count, reached = entry
            if len(self._sleepers) >= count:
                self._waiting.remove(entry)
                if not reached.done():
                    reached.set_result(None)
