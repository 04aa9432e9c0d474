from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from perdure.errors import SessionError
from perdure.session.message import WireMessage

_MOST: Final = 512
_MOST_BYTES: Final = 1 << 20


class Feed:
    """The newest deliveries of one session, which all of its readers in this process share.

    It has every delivery behind `since` up to `head`, and so few that readers who fall behind cost
    nothing: what they miss here is in the store. `lost` is why there are no more, if that is so.
    """

    def __init__(self, since: str) -> None:
        self.since = since
        self.head = since
        self.readers = 0
        self.lost: SessionError | None = None
        self.grown = asyncio.Event()
        """Set at the next change of anything, and then another one."""
        self._window: deque[WireMessage] = deque()
        self._bytes = 0

    def follows(self, version: str) -> bool:
        """Return whether there is no version between the head and this one."""
        return int(version) == int(self.head) + 1

    def take(self, deliveries: Iterable[WireMessage]) -> None:
        """Take in deliveries, in their order; those that are here already change nothing."""
        for delivery in deliveries:
            if delivery.version > self.head:
                self.head = delivery.version
                self._window.append(delivery)
                self._bytes += _size(delivery)
        while len(self._window) > _MOST or self._bytes > _MOST_BYTES:
            dropped = self._window.popleft()
            self.since = dropped.version
            self._bytes -= _size(dropped)
        self._tell()

    def lose(self, error: SessionError) -> None:
        """Tell the readers that there are no more deliveries, once they have had these."""
        self.lost = error
        self._tell()

    def next(self, cursor: str) -> WireMessage | None:
        """Return the first delivery behind a cursor that is not below `since`, or None."""
        if cursor >= self.head:
            return None
        return self._window[bisect_right(self._window, cursor, key=_version)]

    def _tell(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()


def _version(delivery: WireMessage) -> str:
    return delivery.version


def _size(delivery: WireMessage) -> int:
    """Return about how much a delivery takes."""
    data = delivery.data
    return len(data) if isinstance(data, str) else len(msgspec.json.encode(data))
