from __future__ import annotations

from enum import StrEnum
from typing import Any, cast

import msgspec

from perdure.canonical import check_json
from perdure.errors import InvalidPayload, InvalidSessionMessage
from perdure.session import headers


class Action(StrEnum):
    """What a delivery does to the message that its serial names."""

    CREATE = "message.create"
    APPEND = "message.append"
    UPDATE = "message.update"
    DELETE = "message.delete"


class WireMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a channel as it was delivered, or as it stands after all its deliveries.

    `serial` names the message and orders it among others, `version` orders the deliveries of one
    message; both are compared as strings and never taken apart. `data` of an append is the
    fragment alone, and an append has no `name`. `transport` is None on messages that are not of a
    session.
    """

    serial: str
    version: str
    action: Action = Action.CREATE
    name: str | None = None
    data: Any = None
    client_id: str = ""
    timestamp: float | None = None
    transport: dict[str, str] | None = None
    codec: dict[str, str] = {}
    ephemeral: bool = False

    def header(self, name: str) -> str:
        """Return a header of the transport; '' where it is absent, which readers treat alike."""
        return "" if self.transport is None else self.transport.get(name, "")

    @property
    def streamed(self) -> bool:
        """Whether the message grows by appends."""
        return self.header(headers.STREAM) == headers.TRUE

    @property
    def text(self) -> str:
        """The data of a streamed message; '' where they are not text."""
        return self.data if isinstance(self.data, str) else ""


class _Version(msgspec.Struct):
    serial: str | None = None


class _Tiers(msgspec.Struct):
    transport: dict[str, str] = {}
    codec: dict[str, str] = {}


class _Document(msgspec.Struct, rename="camel"):
    serial: str
    action: Action = Action.CREATE
    version: _Version | None = None
    name: str | None = None
    data: Any = None
    client_id: str | None = None
    timestamp: float | None = None
    extras: Any = None


def parse_message(document: bytes | dict[str, Any]) -> WireMessage:
    """Return a message from its JSON, as bytes or already read.

    Members that are not known are ignored, since channels add their own. Raises
    `InvalidSessionMessage` where a known one has the wrong type, where the message has no serial,
    or where a delivery after the first one has no version.
    """
    try:
        if isinstance(document, bytes):
            check_json(document)
            found = msgspec.json.decode(document, type=_Document)
        else:
            found = msgspec.convert(document, type=_Document)
        tiers, ephemeral = _extras(found.extras)
    except (msgspec.MsgspecError, InvalidPayload, RecursionError) as error:
        raise InvalidSessionMessage(f"a message of the channel is malformed: {error}") from error
    version = found.version.serial if found.version else None
    if not found.serial:
        raise InvalidSessionMessage("a message of the channel has an empty serial")
    if not version and found.action is not Action.CREATE:
        raise InvalidSessionMessage(f"{found.action} of {found.serial} has no version serial")
    return WireMessage(
        serial=found.serial,
        version=version or found.serial,
        action=found.action,
        name=found.name,
        data=found.data,
        client_id=found.client_id or "",
        timestamp=found.timestamp,
        transport=tiers.transport if tiers else None,
        codec=tiers.codec if tiers else {},
        ephemeral=ephemeral,
    )


def _extras(extras: object) -> tuple[_Tiers | None, bool]:
    """Return both tiers of headers, or None for a message of somebody else, and if it is stored."""
    if not isinstance(extras, dict):
        return None, False
    members = cast("dict[str, Any]", extras)
    if not isinstance(members.get("ai"), dict):
        return None, False
    return msgspec.convert(members["ai"], type=_Tiers), members.get("ephemeral") is True
