from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.session.codec.port import Event, FoldedMessage, Input, Output, Projection
from perdure.session.codec.said import Said
from perdure.session.codec.text_encoder import TextEncoder
from perdure.session.codec.ui_inputs import INPUT_KINDS
from perdure.session.codec.ui_said import encode_said
from perdure.session.codec.written import Whole
from perdure.session.headers import (
    AI_INPUT,
    AI_OUTPUT,
    CODEC_MESSAGE_ID,
    KIND,
    PART_TYPE,
    ROLE,
)
from perdure.session.message import WireMessage


class TextCodec:
    """Reads and writes nothing but text: messages are `{"id", "role", "text"}`.

    The wire is that of UI messages, so both codecs read what either wrote; reasoning, tools and
    files are passed over. Texts of one message are parted by an empty line.
    """

    def decode(
        self, message: WireMessage, *, before: WireMessage | None = None
    ) -> Sequence[Event] | None:
        """Return the texts of a message, or what it adds to an earlier state of it."""
        if not message.header(CODEC_MESSAGE_ID):
            return []
        if message.name == AI_INPUT and message.codec.get(KIND) in INPUT_KINDS:
            return [_input(message)] if before is None else None
        if message.name != AI_OUTPUT:
            return []
        return [_output(message)] if before is None else _more(message, before)

    def projection(self) -> Projection:
        """Return the empty projection."""
        return TextProjection()

    def encoder(self, message_id: str) -> TextEncoder:
        """Return what writes the text of one message."""
        return TextEncoder(message_id)

    def encode_said(self, said: Said, message_id: str) -> list[Whole]:
        """Return what is written for what a client says: one message, or one for each part."""
        return encode_said(said, message_id)


def _input(message: WireMessage) -> Input:
    said = {"text": message.text} if message.codec.get(PART_TYPE) == "text" else {}
    role = message.header(ROLE) or "user"
    return Input(message.header(CODEC_MESSAGE_ID), message.codec[KIND], said, role)


def _output(message: WireMessage) -> Output:
    """Return an output; one that is no text says nothing here, and still is of its run."""
    said = {"text": message.text} if message.codec.get(KIND) == "text" else {}
    return Output(message.header(CODEC_MESSAGE_ID), {"type": "text", **said})


def _more(message: WireMessage, before: WireMessage) -> list[Event] | None:
    """Return what a text has beyond its earlier state, or None if it does not continue that."""
    if message.codec.get(KIND) != "text":
        return []
    if not message.streamed or not message.text.startswith(before.text):
        return None
    news = message.text[len(before.text) :]
    return [Output(message.header(CODEC_MESSAGE_ID), {"type": "more", "text": news})]


class TextProjection:
    """The texts of one node, a message after the other."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._roles: dict[str, str] = {}

    def fold(self, event: Event) -> None:
        """Add a text, or more of the last one."""
        is_input = isinstance(event, Input)
        said: dict[str, Any] = event.payload if is_input else event.chunk
        if "text" not in said:
            return
        texts = self._texts.setdefault(event.message_id, [])
        self._roles.setdefault(event.message_id, event.role if is_input else "assistant")
        if said.get("type") == "more":
            texts[-1] += said["text"]
        else:
            texts.append(said["text"])

    def pass_over(self, event: Event) -> None:
        """Do nothing: a text stands by itself."""

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the messages in the order in which they began."""
        return [
            FoldedMessage(
                key, {"id": key, "role": self._roles[key], "text": "\n\n".join(filter(None, texts))}
            )
            for key, texts in self._texts.items()
        ]
