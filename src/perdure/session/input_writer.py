from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.channel import Draft
from perdure.session.codec import Said, Saying
from perdure.session.connection import Connection
from perdure.session.message import WireMessage
from perdure.session.sent_before import check_same

_SEEN_SECONDS: Final = 30.0
"""How long what was sent under an id that was given may take to be read back."""


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Something a client says, and the headers that say of which message, run or place it is.

    It goes under an event id of its own where `event_id` is None.
    """

    said: Said
    headers: Mapping[str, str]
    event_id: str | None = None


class InputWriter:
    """Writes what a client says to agents.

    What it writes under an event id is written once, by whichever process and however often: the
    id is that of the message on the channel too. So a caller who does not know whether something
    was sent sends it again under the same id. Event ids are of the session as a whole.
    """

    def __init__(self, connection: Connection, client_id: str, new_id: Callable[[], str]) -> None:
        self.connection = connection
        self.new_id = new_id
        self._client_id = client_id

    def sent_before(self, sending: Sending) -> WireMessage | None:
        """Return what was sent under the event id of a sending, as far as it is seen.

        Raises `InputConflict` where that is something else.
        """
        event_id = sending.event_id
        if event_id is None or (found := self.sent_as(event_id)) is None:
            return None
        parts = self.connection.reader.tree.requests.parts(event_id)
        codec = self.connection.codec
        check_same(event_id, parts, sending.said, sending.headers, codec)
        return found

    def sent_as(self, event_id: str | None) -> WireMessage | None:
        """Return what was sent under an event id before, as far as it is seen."""
        return self.connection.reader.tree.requests.trigger(event_id) if event_id else None

    async def write(self, sendings: Sequence[Sending]) -> WireMessage:
        """Write inputs in one publish, and return the first message of the last of them.

        Where that has an event id that was given, it is what the channel has under it, whoever
        wrote it. Durable when it returns: all of them. Raises `InputConflict` where that is
        something else, `SendFailed` where nobody knows whether they were written,
        `SessionForbidden`, `ChannelNotReady` and `SessionClosed`.
        """
        self.connection.check_attached()
        drafts = [draft for sending in sendings for draft in self._drafts(sending)]
        last = sendings[-1]
        if last.event_id is None:
            serials = await self.connection.say(drafts, self._client_id)
            event_id = drafts[-1].transport[headers.EVENT_ID]
        else:
            serials = await self.connection.publisher.publish_all(drafts)
            event_id = last.event_id
            await self._read_back(event_id, serials[-1], len(drafts))
            for sending in sendings:
                self.sent_before(sending)
        found = self.sent_as(event_id)
        assert found is not None  # it was read
        return found

    async def cancel(self, about: Mapping[str, str], event_id: str | None) -> None:
        """Write a cancel. Durable when it returns: the cancel."""
        self.connection.check_attached()
        event = event_id or self.new_id()
        transport = {headers.EVENT_ID: event, **about}
        draft = Draft(
            message_id=self._message_id(event, 0), name=headers.AI_CANCEL, transport=transport
        )
        await self.connection.say([draft], self._client_id)

    def _drafts(self, sending: Sending) -> list[Draft]:
        event = sending.event_id or self.new_id()
        about = {headers.ROLE: "user", **sending.headers, headers.EVENT_ID: event}
        if self._client_id:
            about[headers.RUN_CLIENT_ID] = self._client_id
        about[headers.STREAM] = headers.FALSE
        if isinstance(sending.said, Saying):
            about[headers.DISCRETE] = headers.TRUE
        transport = {name: value for name, value in about.items() if value}
        written = self.connection.codec.encode_said(
            sending.said, transport[headers.CODEC_MESSAGE_ID]
        )
        return [
            Draft(
                message_id=self._message_id(event, number),
                name=headers.AI_INPUT,
                transport=transport,
                codec=whole.fields,
                data=whole.data,
            )
            for number, whole in enumerate(written)
        ]

    def _message_id(self, event_id: str, number: int) -> str:
        """Return the id of a message on the channel, which no other client can come to use."""
        client = self._client_id
        return f"{number}/{len(client)}/{client}/{event_id}"

    async def _read_back(self, event_id: str, serial: str, parts: int) -> None:
        """Wait until what stands under an event id is read: it may be of another process.

        Where it is no news it stands in history.
        """
        connection = self.connection
        cursor = connection.reader.cursor
        what = f"what was sent as {event_id}"

        def is_read() -> bool:
            # All parts of a message, which are written together and may be read one by one.
            known = connection.reader.tree.requests.serials(event_id)
            return bool(known) and (parts == 1 or serial in known)

        while not is_read() and not connection.reader.complete:
            if cursor is not None and serial > cursor:
                break
            await connection.load_page()
        await connection.until(is_read, what, _SEEN_SECONDS)


def check_text(name: str, value: str | None) -> None:
    """Raise `InvalidSessionArgument` for an id that is given and empty."""
    if value == "":
        raise InvalidSessionArgument(f"{name} is empty; leave it out for a new one")
