from __future__ import annotations

import msgspec

from perdure.session import headers
from perdure.session.message import Action, WireMessage


class Change(msgspec.Struct, frozen=True):
    """What a delivery made of a message; `before` is None if it was not known."""

    before: WireMessage | None
    after: WireMessage


class MessageLog:
    """Every message of a channel that was seen, as history would give it.

    The one rule: what is held of a message does not depend on how it was learned. A create and its
    appends, a late join that got it whole, and a page of history all come to the same contents, and
    a delivery that comes twice changes nothing. So whatever is made of these contents is the same
    for live, late and reconnecting readers.

    Appends to a message that is not known yet wait for it: history brings the part they continue.
    """

    def __init__(self) -> None:
        self._messages: dict[str, WireMessage] = {}
        self._early: dict[str, list[WireMessage]] = {}

    def receive(self, delivery: WireMessage) -> Change | None:
        """Take one delivery in; return None if it changes nothing."""
        before = self._messages.get(delivery.serial)
        after = self._first(delivery) if before is None else _later(before, delivery)
        if after is None:
            return None
        self._messages[delivery.serial] = after
        return Change(before, after)

    def get(self, serial: str) -> WireMessage | None:
        """Return a message as it stands, or None."""
        return self._messages.get(serial)

    def _first(self, delivery: WireMessage) -> WireMessage | None:
        if delivery.transport is None:
            return None
        if delivery.action is Action.APPEND:
            self._early.setdefault(delivery.serial, []).append(delivery)
            return None
        contents = delivery
        for fragment in self._early.pop(delivery.serial, []):
            contents = _later(contents, fragment) or contents
        return contents


def _later(before: WireMessage, delivery: WireMessage) -> WireMessage | None:
    """Return what a message is after a further delivery, or None if that is no news.

    Whose a message is, and of which kind, stays as it was first said; a later delivery changes the
    data, other headers of the codec, and whether the stream has ended. An update is the truth even
    after the last append: it may be the repair of a gap.
    """
    if delivery.action is Action.CREATE or delivery.version <= before.version:
        return None
    data = delivery.data
    if delivery.action is Action.APPEND:
        data = before.text + delivery.text
    transport = before.transport or {}
    if status := delivery.header(headers.STATUS):
        transport = {**transport, headers.STATUS: status}
    codec = before.codec
    if delivery.transport is not None:
        codec = {**delivery.codec, headers.KIND: codec.get(headers.KIND, "")}
    return msgspec.structs.replace(
        before,
        action=Action.DELETE if delivery.action is Action.DELETE else Action.UPDATE,
        version=delivery.version,
        name=before.name or delivery.name,
        data=data,
        transport=transport,
        codec=codec,
    )
