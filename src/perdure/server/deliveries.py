from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from perdure.clock import Clock
from perdure.errors import ContinuityLost, SessionError
from perdure.server.documents import message_document
from perdure.server.frames import first_frame, frame
from perdure.session.channel import SnapshotChannel

SNAPSHOT: Final = "snapshot"
"""The cursor of a reader who has nothing yet."""

_AGAIN_SECONDS: Final = 1.0
_CURSOR_CHARACTERS: Final = 128


class Deliveries:
    """The deliveries of a session as events, each under the cursor to go on behind.

    Who comes without a cursor gets a `snapshot` first. Where deliveries may have been missed, or
    the cursor is none of the session, a `resync` has the newest messages anew.
    """

    def __init__(
        self, channel: SnapshotChannel, after: str | None, limit: int, clock: Clock
    ) -> None:
        self._channel = channel
        self._limit = limit
        self._clock = clock
        self._is_known = after is None or after == SNAPSHOT or _is_cursor(after)
        self.cursor = after if after and self._is_known else SNAPSHOT
        """What was told last."""

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield the events, for as long as the channel has any."""
        yield first_frame(self.cursor)
        news, resynced = "snapshot" if self._is_known else "resync", None
        try:
            if self.cursor == SNAPSHOT:
                yield await self._snapshot(news)
            while True:
                try:
                    async with self._channel.subscribe(self.cursor) as deliveries:
                        async for delivery in deliveries:
                            cursor = None if delivery.ephemeral else delivery.version
                            self.cursor = cursor or self.cursor
                            yield frame(message_document(delivery), cursor=cursor)
                except ContinuityLost:
                    if self.cursor == resynced:  # and nothing came since
                        await self._clock.sleep(_AGAIN_SECONDS)
                    yield await self._snapshot("resync")
                    resynced = self.cursor
        except SessionError:
            yield self.farewell()

    def farewell(self) -> bytes:
        """Return the event that tells a reader to come again, and from where to go on."""
        return frame({"cursor": self.cursor}, event="handover")

    async def _snapshot(self, event: str) -> bytes:
        newest = await self._channel.snapshot(self._limit)
        self.cursor = newest.cursor
        document = {
            "messages": [message_document(message) for message in reversed(newest.messages)],
            "cursor": newest.cursor,
            "more": newest.more,
        }
        return frame(document, event=event, cursor=newest.cursor)


def _is_cursor(text: str) -> bool:
    return len(text) <= _CURSOR_CHARACTERS and text.isascii() and text.isprintable()
