from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process: one for people, one for durations."""

    def now(self) -> float:
        """Return wall time as seconds since the epoch, UTC; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; it never jumps."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on the monotonic clock."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def now(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def monotonic(self) -> float:
        """Return `time.monotonic()`, which all processes of a host share."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep in the event loop."""
        await asyncio.sleep(seconds)
