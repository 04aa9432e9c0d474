from __future__ import annotations

from typing import Final

from perdure.clock import Clock

_TOLERATED_SECONDS: Final = 0.05


class ServerClock:
    """The wall clock of a database server, as this host's clock and how far it is off.

    Workers on several hosts so agree on what time it is, also where one of their clocks is wrong.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_seconds = 0.0

    def hear(self, server_now: float) -> None:
        """Take note of the server's time; differences that a reply's way explains are ignored."""
        ahead = server_now - self._clock.now()
        if abs(ahead - self._ahead_seconds) > _TOLERATED_SECONDS:
            self._ahead_seconds = ahead if abs(ahead) > _TOLERATED_SECONDS else 0.0

    def now(self) -> float:
        """Return the server's wall time as seconds since the epoch, UTC."""
        return self._clock.now() + self._ahead_seconds

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, on this host."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this host's monotonic clock."""
        await self._clock.sleep(seconds)
