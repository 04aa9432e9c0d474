from __future__ import annotations

from typing import Any, Protocol

import msgspec

Fields = dict[str, str]


class Whole(msgspec.Struct, frozen=True):
    """An output that is one message. `fields` are the headers of the codec, of which `kind`."""

    fields: Fields
    data: Any = ""
    ephemeral: bool = False


class Begin(msgspec.Struct, frozen=True):
    """The begin of a streamed message; `key` names the stream within one encoder."""

    key: tuple[str, str]
    fields: Fields


class More(msgspec.Struct, frozen=True):
    """Text that a stream goes on with."""

    key: tuple[str, str]
    text: str


class End(msgspec.Struct, frozen=True):
    """The end of a stream; `fields` replace those of its begin.

    `whole` is what its text has to be, or None where that is what has been added.
    """

    key: tuple[str, str]
    fields: Fields = {}
    whole: str | None = None


Written = Whole | Begin | More | End


class Encoder(Protocol):
    """Turns what an agent puts out for one message into what is written."""

    def encode(self, output: Any) -> list[Written]:
        """Return what one output is written as. Raises `InvalidSessionArgument`."""
        ...

    def finish(self) -> list[Written]:
        """Return what is written where the outputs have come to their end."""
        ...
