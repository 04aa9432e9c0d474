from __future__ import annotations

from typing import Final

from perdure.clock import Clock

_TOLERATED_SECONDS: Final = 0.05


class ServerClock:
    """The wall clock of a database server, as it was heard and as time went on since.

    Workers on several hosts so agree on what time it is, also where one of their clocks is wrong,
    or is set while they work. Until the server was heard it is this host's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at: float | None = None

    def hear(self, server_now: float) -> None:
        """Take note of the server's time; differences that a reply's way explains are ignored."""
        started_at = server_now - self._clock.monotonic()
        known = self._started_at
        if known is None or abs(started_at - known) > _TOLERATED_SECONDS:
            self._started_at = started_at

    def now(self) -> float:
        """Return the server's wall time as seconds since the epoch, UTC."""
        started_at = self._started_at
        return self._clock.now() if started_at is None else started_at + self._clock.monotonic()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, on this host."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this host's monotonic clock."""
        await self._clock.sleep(seconds)
