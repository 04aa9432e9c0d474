from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from perdure.session.codec.said import Said
from perdure.session.codec.written import Encoder, Whole
from perdure.session.message import WireMessage


class Output(msgspec.Struct, frozen=True):
    """A chunk that an agent put out for the message `message_id`.

    `domain_id` is the id that people's code knows the message by, where the wire repeats it.
    """

    message_id: str
    chunk: dict[str, Any]
    domain_id: str = ""


class Input(msgspec.Struct, frozen=True):
    """What somebody sent for the message `message_id`: a new one, or one that an agent wrote."""

    message_id: str
    kind: str
    payload: dict[str, Any]
    role: str = "user"


Event = Output | Input


class FoldedMessage(msgspec.Struct, frozen=True):
    """A message of a conversation, as code of users has it; `message` is not to be changed."""

    codec_message_id: str
    message: dict[str, Any]


class Projection(Protocol):
    """What the events of one node add up to, in their order."""

    def fold(self, event: Event) -> None:
        """Add an event. Nothing of it is changed, and it may be folded again elsewhere."""
        ...

    def pass_over(self, event: Event) -> None:
        """Take note of an event that another attempt has replaced; none of it is to be shown."""
        ...

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the messages so far. Later events do not change what was returned."""
        ...


class Codec(Protocol):
    """What the data of messages mean: how they read and are written, and what they add up to."""

    def decode(
        self, message: WireMessage, *, before: WireMessage | None = None
    ) -> Sequence[Event] | None:
        """Return the events that a message stands for.

        With `before`, an earlier state of the message that was decoded, return what it adds to
        that; None where it does not just continue it.
        """
        ...

    def projection(self) -> Projection:
        """Return the empty projection."""
        ...

    def encoder(self, message_id: str) -> Encoder:
        """Return what writes the outputs of one message."""
        ...

    def encode_said(self, said: Said, message_id: str) -> list[Whole]:
        """Return what is written, in one publish, for what a client says to an agent.

        `message_id` is what the wire calls the message that it is, or is about. Raises
        `InvalidSessionArgument` where it is nothing that can be said.
        """
        ...
