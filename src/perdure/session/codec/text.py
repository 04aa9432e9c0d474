from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.session.codec.port import Event, FoldedMessage, Input, Output, Projection
from perdure.session.codec.ui_inputs import INPUT_KINDS
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
    """Reads nothing but text: messages are `{"id", "role", "text"}`.

    The wire is that of UI messages, so both codecs read what either wrote; reasoning, tools and
    files are passed over. Texts of one message are parted by an empty line.
    """

    def decode(
        self, message: WireMessage, *, before: WireMessage | None = None
    ) -> Sequence[Event] | None:
        """Return the texts of a message, or what it adds to an earlier state of it."""
        message_id = message.header(CODEC_MESSAGE_ID)
        if not message_id:
            return []
        kind = message.codec.get(KIND, "")
        if message.name == AI_INPUT and kind in INPUT_KINDS:
            said = {"text": message.text} if message.codec.get(PART_TYPE) == "text" else {}
            role = message.header(ROLE) or "user"
            return [Input(message_id, kind, said, role)] if before is None else None
        if message.name != AI_OUTPUT:
            return []
        if before is None:
            # Other outputs say nothing here, and still are of the run.
            said = {"text": message.text} if kind == "text" else {}
            return [Output(message_id, {"type": "text", **said})]
        if kind != "text":
            return []
        if not message.streamed or not message.text.startswith(before.text):
            return None
        news = message.text[len(before.text) :]
        return [Output(message_id, {"type": "more", "text": news})] if news else []

    def projection(self) -> Projection:
        """Return the empty projection."""
        return TextProjection()


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
