from __future__ import annotations

from collections.abc import Sequence

from perdure.session.codec.port import Event, Output, Projection
from perdure.session.codec.said import Said
from perdure.session.codec.ui_encoder import UiEncoder
from perdure.session.codec.ui_inputs import decode_input
from perdure.session.codec.ui_outputs import discrete_chunks, stream_chunks
from perdure.session.codec.ui_projection import UiProjection
from perdure.session.codec.ui_said import encode_said
from perdure.session.codec.written import Whole
from perdure.session.headers import AI_INPUT, AI_OUTPUT, CODEC_MESSAGE_ID
from perdure.session.message import WireMessage


class UiMessageCodec:
    """Reads and writes UI messages and the chunks of UI message streams, as `useChat` has them."""

    def decode(
        self, message: WireMessage, *, before: WireMessage | None = None
    ) -> Sequence[Event] | None:
        """Return the events of a message, or what it adds to an earlier state of it."""
        if message.name == AI_INPUT:
            return decode_input(message) if before is None else None
        message_id = message.header(CODEC_MESSAGE_ID)
        if message.name != AI_OUTPUT or not message_id:
            return []
        if message.streamed:
            chunks = stream_chunks(message, before)
        else:
            chunks = discrete_chunks(message) if before is None else None
        if chunks is None:
            return None
        domain_id = message.codec.get("messageId", "")
        return [Output(message_id, chunk, domain_id) for chunk in chunks]

    def projection(self) -> Projection:
        """Return the empty projection."""
        return UiProjection()

    def encoder(self, message_id: str) -> UiEncoder:
        """Return what writes the chunks of one message."""
        return UiEncoder(message_id)

    def encode_said(self, said: Said, message_id: str) -> list[Whole]:
        """Return what is written for what a client says: one message, or one for each part."""
        return encode_said(said, message_id)
