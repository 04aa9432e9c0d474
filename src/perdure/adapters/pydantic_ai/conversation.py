from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

import msgspec
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from perdure.canonical import encode

# What a provider is never sent: who asked when, what it cost, and the application's own notes.
_UNSENT: Final = {
    "__all__": {
        "timestamp": True,
        "run_id": True,
        "conversation_id": True,
        "usage": True,
        "failed_attempts": True,
        "metadata": True,
        "workspace_ref": True,
        "history_digest": True,
        "parts": {"__all__": {"timestamp", "metadata"}},
    }
}


class Document(msgspec.Struct, frozen=True):
    """The input of an operation, with the offsets at which a store may split it."""

    data: bytes
    cuts: tuple[int, ...] = ()


class Conversation:
    """Writes the messages of one agent run, each of them once.

    A conversation is sent again with every request, a little longer each time. The bytes of a
    message are kept and used again as long as no member of it or of its parts was replaced; a
    change deep inside of one, such as a list in a tool's arguments, goes unnoticed.
    """

    def __init__(self) -> None:
        self._written: dict[int, _Written] = {}

    def document(self, head: bytes, messages: Sequence[ModelMessage]) -> Document:
        """Return a JSON object that ends with the messages, so that longer ones begin alike.

        `head` is the object up to its last member, the messages, which is missing.
        """
        fragments = [self._fragment(message) for message in messages]
        if fragments:
            fragments[0] = fragments[0].removeprefix(b",")
        fragments.insert(0, head + b'"messages":[')
        cuts = tuple(itertools.accumulate(map(len, fragments)))
        fragments.append(b"]}")
        return Document(b"".join(fragments), cuts)

    def _fragment(self, message: ModelMessage) -> bytes:
        written = self._written.get(id(message))
        if (
            written is None
            or written.parts is not message.parts
            or written.live != written.saved  # a member was replaced since
        ):
            written = _write(message)
            self._written[id(message)] = written
        return written.fragment


class _Written(msgspec.Struct, frozen=True):
    """A message as a fragment, comma first, and what it was made from.

    `live` holds the message's own dicts and list, `saved` what was in them. To compare them is a
    fraction of the cost of writing the message again. The message is held on to, so that its id
    stays its own.
    """

    message: ModelMessage
    parts: Sequence[Any]
    live: list[Any]
    saved: list[Any]
    fragment: bytes


def _write(message: ModelMessage) -> _Written:
    live: list[Any] = [vars(message), message.parts, *map(vars, message.parts)]
    saved = [copy(container) for container in live]
    return _Written(message, message.parts, live, saved, b"," + _bytes(message))


def _bytes(message: ModelMessage) -> bytes:
    documents: list[Any] = ModelMessagesTypeAdapter.dump_python(
        [message], mode="json", exclude=_UNSENT, exclude_none=True
    )
    return encode(documents[0], what="message")


def slim(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response in JSON's terms without what is absent from it, which is most of it.

    Reading it gives what is absent its default. The content of parts is left as it is.
    """
    slimmed = _present(response)
    slimmed["parts"] = [_present(part) for part in response["parts"]]
    slimmed["usage"] = {name: count for name, count in response["usage"].items() if count}
    return slimmed


def _present(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
