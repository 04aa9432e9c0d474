from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from perdure.session.attempts import Standing
from perdure.session.codec import Codec, FoldedMessage, Projection
from perdure.session.message import Action, WireMessage


class EventLog:
    """The content of one node: its messages by serial, and what they add up to.

    What is folded depends on the messages alone and not on their arrival: at the end of the log
    the projection is carried on, anywhere else it is made anew from the whole log.
    """

    def __init__(self, codec: Codec, standing: Callable[[WireMessage], Standing]) -> None:
        self._codec = codec
        self._standing = standing
        self._serials: list[str] = []
        self._entries: dict[str, WireMessage] = {}
        self._projection: Projection = codec.projection()
        self._folded = 0
        self._last: WireMessage | None = None
        self._messages: Sequence[FoldedMessage] | None = None

    def put(self, message: WireMessage) -> None:
        """Add a message, or replace what was there of it by how it stands now."""
        serial = message.serial
        index = bisect_left(self._serials, serial)
        if serial not in self._entries:
            self._serials.insert(index, serial)
            if index < self._folded:
                self.refold()
        elif index < self._folded - 1:
            self.refold()
        self._entries[serial] = message
        self._messages = None

    def remove(self, serial: str) -> None:
        """Take a message out that turned out to belong elsewhere."""
        if self._entries.pop(serial, None) is not None:
            self._serials.remove(serial)
            self.refold()

    def refold(self) -> None:
        """Forget what was folded: another attempt of a step counts now."""
        self._folded = 0
        self._messages = None

    def entries(self) -> list[WireMessage]:
        """Return the messages in the order of their serials."""
        return [self._entries[serial] for serial in self._serials]

    def first(self) -> WireMessage | None:
        """Return the message with the lowest serial."""
        return self._entries[self._serials[0]] if self._serials else None

    def messages(self) -> Sequence[FoldedMessage]:
        """Return what the log adds up to."""
        if self._messages is None:
            self._catch_up()
            self._messages = self._projection.messages()
        return self._messages

    def _catch_up(self) -> None:
        if self._folded and not self._continue_last():
            self._folded = 0
        if not self._folded:
            self._projection = self._codec.projection()
        for serial in self._serials[self._folded :]:
            self._last = self._entries[serial]
            self._fold(self._last, None)
        self._folded = len(self._serials)

    def _continue_last(self) -> bool:
        """Fold what came to the last message that was folded; False if it does not continue it."""
        before, now = self._last, self._entries[self._serials[self._folded - 1]]
        self._last = now
        return before is now or (before is not None and self._fold(now, before))

    def _fold(self, message: WireMessage, before: WireMessage | None) -> bool:
        standing = self._standing(message)
        if message.action is Action.DELETE or (before and before.action is Action.DELETE):
            return before is None
        if standing is Standing.VOID:
            return True
        events = self._codec.decode(message, before=before)
        take = self._projection.fold if standing is Standing.COUNTS else self._projection.pass_over
        for event in events or ():
            take(event)
        return events is not None
