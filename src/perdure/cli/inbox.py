from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.cli.sheet import Column, Sheet
from perdure.cli.words import instant, moment, shortened
from perdure.codec.readable import readable
from perdure.inbox import Message

_PAYLOAD_CHARACTERS: Final = 120
_OWN: Final = {"perdure:approval:": "answer to ", "perdure:run:": "end of run "}
_COLUMNS: Final = (
    Column("message", least=8),
    Column("id", least=8, dispensable=1),
    Column("sent (UTC)", dispensable=2),
    Column("by", dispensable=3),
    Column("taken by", least=12),
    Column("payload", least=20),
)


def describe_message(message: Message) -> dict[str, Any]:
    """Return a message to a run as a JSON document shows it."""
    taken, payload = message.taken_by, message.payload_json
    return {
        "message_id": message.message_id,
        "name": message.name,
        "edition": message.edition,
        "payload": None if payload is None else msgspec.Raw(payload),
        "sent_by": message.sent_by,
        "sent_at": instant(message.sent_at),
        "taken_by": None if taken is None else f"{taken[0]}/{taken[1]}",
        "taken_at": instant(message.taken_at),
    }


def inbox_sheet(messages: Sequence[Message]) -> Sheet:
    """Return the messages of a run as a table, in the order in which they came."""
    return Sheet("inbox", _COLUMNS, map(_cells, messages))


def _cells(message: Message) -> tuple[object, ...]:
    taken, payload = message.taken_by, message.payload_json
    shown = "" if payload is None else readable(payload).decode("utf-8", "replace")
    return (
        _called(message.name),
        "" if message.message_id == message.name else message.message_id,
        moment(message.sent_at).removesuffix("Z"),
        message.sent_by,
        "" if taken is None else f"{taken[0]}/{taken[1]}",
        shortened(shown, _PAYLOAD_CHARACTERS),
    )


def _called(name: str) -> str:
    """Return what people call a message, also one that the store itself wrote."""
    for start, word in _OWN.items():
        if name.startswith(start):
            return word + name.removeprefix(start)
    return name
