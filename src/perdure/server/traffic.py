from __future__ import annotations

import math
from collections import Counter
from typing import Final

from perdure.clock import Clock
from perdure.server.limits import Limits
from perdure.server.problems import Refused

_MOST_BUCKETS: Final = 10_000


class Slot:
    """The room of one stream, until it is given back; giving it back twice is harmless."""

    def __init__(self, counts: Counter[tuple[str, str]], keys: tuple[tuple[str, str], ...]) -> None:
        self._counts = counts
        self._keys = keys

    def release(self) -> None:
        """Give the room back."""
        for key in self._keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        self._keys = ()


class Traffic:
    """What is under way in this process, and how much of it came lately, by client and session."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._streams: Counter[tuple[str, str]] = Counter()
        # When each would have made all its requests, had it made them at the rate it may have.
        self._spent_at: dict[tuple[str, str], float] = {}

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams["all", ""]

    def admit(self, client_id: str, session: str) -> None:
        """Count one request. Raises `Refused` where there have been too many lately."""
        limits = self._limits
        self._spend(("client", client_id), limits.client_requests_per_minute)
        self._spend(("session", session), limits.session_requests_per_minute)

    def open_stream(self, client_id: str, session: str) -> Slot:
        """Take the room of a stream. Raises `Refused` where there is none."""
        limits = self._limits
        bounds = {
            ("all", ""): limits.streams,
            ("client", client_id): limits.client_streams,
            ("session", session): limits.session_streams,
        }
        for (what, _), most in bounds.items():
            if self._streams[what, _] >= most:
                whose = "this server" if what == "all" else f"this {what}"
                raise _too_many(f"{whose} has {most} streams open; close one of them first", 5.0)
        self._streams.update(bounds.keys())
        return Slot(self._streams, tuple(bounds))

    def _spend(self, key: tuple[str, str], per_minute: int) -> None:
        now, cost = self._clock.monotonic(), 60.0 / per_minute
        spent_at = max(self._spent_at.get(key, now), now)
        wait = spent_at + cost - now - 60.0
        if wait > 0:
            raise _too_many(f"this {key[0]} makes more than {per_minute} requests a minute", wait)
        if len(self._spent_at) >= _MOST_BUCKETS:
            self._spent_at = {k: at for k, at in self._spent_at.items() if at > now}
        self._spent_at[key] = spent_at + cost


def _too_many(message: str, wait_seconds: float) -> Refused:
    headers = {"retry-after": str(max(1, math.ceil(wait_seconds)))}
    return Refused(429, "TooManyRequests", message, headers)
