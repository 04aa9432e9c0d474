from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from ably.types.message import Message  # pyright: ignore[reportMissingTypeStubs]

from perdure.channels.ably.client import Delivered
from perdure.errors import InvalidSessionArgument, InvalidSessionMessage
from perdure.session.channel import Draft, Revision
from perdure.session.message import Action, WireMessage, parse_message

_ACTIONS: Final = {
    None: Action.CREATE,
    0: Action.CREATE,
    1: Action.UPDATE,
    2: Action.DELETE,
    5: Action.APPEND,
}
"""By their numbers on the wire; the others are about annotations and who is present."""


def to_publish(draft: Draft, message_id: str, client_id: str) -> Message:
    """Return a draft as the client sends it. Raises `InvalidSessionArgument` for data not JSON."""
    document = _json(draft.data)
    plain = draft.data is None or isinstance(draft.data, str)
    return Message(
        id=message_id,
        name=draft.name,
        data=draft.data if plain else document,
        encoding="" if plain else "json",
        client_id=client_id or None,
        extras=_extras(draft.transport, draft.codec, ephemeral=draft.ephemeral),
    )


def to_change(serial: str, change: Revision) -> Message:
    """Return an append or an update of a message as the client sends it."""
    return Message(serial=serial, data=change.data, extras=_extras(change.transport, change.codec))


def delivered(message: Delivered) -> WireMessage | None:
    """Return a message as a session reads it, or None for what no session can have written."""
    action = _ACTIONS.get(message.action)
    if action is None:
        return None
    # Of what comes whole it is who made the message, so that all readers are told the same.
    writer = message.version.client_id if action is Action.APPEND else message.client_id
    document: dict[str, Any] = {
        "serial": message.serial,
        "action": action.value,
        "version": {"serial": message.version.serial},
        "name": message.name,
        "data": message.data,
        "clientId": writer,
        "timestamp": message.timestamp,
        "extras": message.extras,
    }
    try:
        return parse_message(document)
    except InvalidSessionMessage:
        return None


def all_delivered(messages: Iterable[Delivered]) -> list[WireMessage]:
    """Return those of some messages that a session can have written."""
    return [found for message in messages if (found := delivered(message)) is not None]


def _extras(
    transport: dict[str, str], codec: dict[str, str], *, ephemeral: bool = False
) -> dict[str, Any]:
    tiers = {"transport": transport, **({"codec": codec} if codec else {})}
    return {"ai": tiers, **({"ephemeral": True} if ephemeral else {})}


def _json(data: object) -> str:
    try:
        return msgspec.json.encode(data).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSessionArgument(f"the data of a message are no JSON: {error}") from error
