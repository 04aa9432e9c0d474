from __future__ import annotations

import asyncio

from perdure.clock import Clock


class Signal:
    """Tells one task to look at something now, which it does once in a while anyway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given = asyncio.Event()

    def give(self) -> None:
        """End the wait that is under way, or the next one."""
        self._given.set()

    async def wait(self, seconds: float | None) -> None:
        """Return once the signal is given, or when the seconds have passed; None is for ever."""
        if seconds is None:
            await self._given.wait()
        elif not self._given.is_set():
            waits = [
                asyncio.create_task(self._given.wait()),
                asyncio.create_task(self._clock.sleep(seconds)),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        self._given.clear()
