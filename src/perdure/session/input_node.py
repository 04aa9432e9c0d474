from __future__ import annotations

from collections.abc import Sequence

from perdure.session import headers
from perdure.session.attempts import Standing
from perdure.session.codec import Codec, FoldedMessage
from perdure.session.event_log import EventLog
from perdure.session.message import WireMessage


class InputNode:
    """What a person said: the parts of one message, under its codec message id.

    They are of whoever said the first of them: nobody else adds to it, whichever arrives first.
    """

    def __init__(self, key: str, codec: Codec) -> None:
        self.key = key
        self._codec = codec
        self._by_client: dict[str, EventLog] = {}

    def put(self, part: WireMessage) -> None:
        """Add a part, or replace what was there of it by how it stands now."""
        if part.client_id not in self._by_client:
            log = EventLog(self._codec, lambda _: Standing.COUNTS)
            self._by_client[part.client_id] = log
        self._by_client[part.client_id].put(part)

    @property
    def log(self) -> EventLog:
        """The parts of the one who said the first of them."""
        return min(self._by_client.values(), key=_first_serial)

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


def _first_serial(log: EventLog) -> str:
    first = log.first()
    assert first is not None  # a log is made for a part
    return first.serial
