from __future__ import annotations

from collections.abc import Sequence

from perdure.session import headers
from perdure.session.attempts import Standing
from perdure.session.codec import Codec, FoldedMessage
from perdure.session.event_log import EventLog
from perdure.session.message import WireMessage


class InputNode:
    """What a person said: the parts of one message, under its codec message id."""

    def __init__(self, key: str, codec: Codec) -> None:
        self.key = key
        self.log = EventLog(codec, lambda _: Standing.COUNTS)

    @property
    def serial(self) -> str:
        """The serial that orders the node among others."""
        return self._first.serial

    @property
    def parent(self) -> str | None:
        """The message that this one follows; None for the first of a conversation."""
        return self._first.header(headers.PARENT) or None

    @property
    def fork_of(self) -> str | None:
        """The message that this one was put in the place of, by an edit."""
        return self._first.header(headers.FORK_OF) or None

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the one message, or nothing if it was deleted."""
        return self.log.messages()

    @property
    def _first(self) -> WireMessage:
        first = self.log.first()
        assert first is not None  # a node is made for a message
        return first
