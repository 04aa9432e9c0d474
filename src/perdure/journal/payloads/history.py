from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from perdure.canonical import read_document
from perdure.errors import InvalidHistory, InvalidPayload, UnsupportedVersion
from perdure.journal.payloads.bounds import HISTORY
from perdure.journal.payloads.exact import I64
from perdure.journal.payloads.history_v1 import messages_of
from perdure.journal.payloads.messages import Message

HISTORY_VERSION: Final = 2
"""The version of the history document that this release writes; it reads version 1 too."""


class _Head(msgspec.Struct):
    version: I64
    messages: list[Raw]


class _History(msgspec.Struct):
    version: int
    messages: tuple[Message, ...]


_encode: Final = msgspec.json.Encoder().encode
_heads: Final = msgspec.json.Decoder(_Head)
_histories: Final = msgspec.json.Decoder(_History)


def encode_history(messages: tuple[Message, ...]) -> bytes:
    """Return the history document of messages, version 2.

    Raises `InvalidHistory` for what no reader would accept.
    """
    what = "the history"
    try:
        data = _encode(_History(HISTORY_VERSION, messages))
        _histories.decode(data)
        HISTORY.check(data, what=what)
    except (InvalidPayload, ValueError, TypeError, RecursionError) as error:
        raise InvalidHistory(f"{what} cannot be written: {error}") from error
    return data


def parse_history(data: bytes) -> tuple[Message, ...]:
    """Return the messages of a history document of version 2, or of version 1.

    Members that it does not know are ignored. Raises `InvalidHistory`, and `UnsupportedVersion`
    for a document that has messages of another version.
    """
    what = "the history"
    try:
        HISTORY.check_size(data, what=what)
        head = read_document(data, _heads, what=what, refuse=InvalidHistory)
        HISTORY.check(data, what=what)
        if head.version == HISTORY_VERSION:
            return _histories.decode(data).messages
        if head.version == 1:
            return messages_of(head.messages)
    except (InvalidPayload, ValueError, RecursionError) as error:
        raise InvalidHistory(f"{what} does not have the shape of one: {error}") from error
    raise UnsupportedVersion(
        f"the history has version {head.version} and this release reads versions 1 and"
        f" {HISTORY_VERSION}: upgrade perdure where it is read"
    )
