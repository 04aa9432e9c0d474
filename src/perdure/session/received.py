from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.session import headers
from perdure.session.codec import Codec
from perdure.session.codec.ui_inputs import ANSWERS, decode_input
from perdure.session.message import WireMessage
from perdure.session.run_node import RunNode


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a client has sent to a run, under an event id that names it for good.

    `client_id` is whom the channel knows the sender as. By `kind`, `payload` is the message that a
    person said as the codec has it, or `{"toolCallId"}` with `{"approved", "reason"?}`,
    `{"output"}` or `{"message"}`.
    """

    event_id: str
    client_id: str
    codec_message_id: str
    kind: str
    payload: dict[str, Any]
    serial: str


def steers(run: RunNode, codec: Codec) -> list[Received]:
    """Return what was said to a run while it went on, oldest first, answered or not."""
    said: dict[tuple[str, str, str], list[WireMessage]] = {}
    for part in run.steers:
        key = part.header(headers.EVENT_ID), part.header(headers.CODEC_MESSAGE_ID), part.client_id
        said.setdefault(key, []).append(part)
    return [received(parts, codec) for parts in said.values()]


def answers(run: RunNode) -> list[Received]:
    """Return what was answered to the calls of a run, oldest first."""
    told = ((message, _answer(message)) for message in run.inputs)
    return [_received(message, payload) for message, payload in told if payload is not None]


def received(parts: Sequence[WireMessage], codec: Codec) -> Received:
    """Return what a client has sent under one event id, in one message or several."""
    first = parts[0]
    told = _answer(first)
    return _received(first, _message(parts, codec) if told is None else told)


def _answer(message: WireMessage) -> dict[str, Any] | None:
    """Return what an answer says but for the seed of a fork; None for a message that is none."""
    events = decode_input(message) if message.codec.get(headers.KIND) in ANSWERS else []
    return {k: v for k, v in events[0].payload.items() if k != "seed"} if events else None


def _message(parts: Sequence[WireMessage], codec: Codec) -> dict[str, Any]:
    projection = codec.projection()
    for part in parts:
        for event in codec.decode(part) or ():
            projection.fold(event)
    messages = projection.messages()
    return messages[0].message if messages else {}


def _received(message: WireMessage, payload: dict[str, Any]) -> Received:
    return Received(
        event_id=message.header(headers.EVENT_ID),
        client_id=message.client_id,
        codec_message_id=message.header(headers.CODEC_MESSAGE_ID),
        kind=message.codec.get(headers.KIND, ""),
        payload=payload,
        serial=message.serial,
    )
