from __future__ import annotations

import enum
from typing import Final

from perdure.canonical import check_json
from perdure.errors import InvalidEventRequest, InvalidPayload, UnsupportedEventWireVersion
from perdure.journal.payloads.envelope import Envelope
from perdure.journal.payloads.exact import U64, Exact


class EventSource(enum.StrEnum):
    """Where an event comes from."""

    APPLICATION = "application"
    MCP = "mcp"


class EventRequest(Exact, frozen=True, kw_only=True):
    """The input of an event delivery: the event, and the operation that it belongs to.

    `event_json` is a JSON object as text. There is no response: any is accepted, and ignored.
    """

    source: EventSource
    parent_sequence: U64
    event_index: U64
    event_json: str


_REQUEST: Final = Envelope(
    EventRequest, "the event request", InvalidEventRequest, UnsupportedEventWireVersion
)


def encode_event_request(request: EventRequest) -> bytes:
    """Return the document of an event delivery; raise `InvalidEventRequest`."""
    _check(request)
    return _REQUEST.encode(request)


def parse_event_request(data: bytes) -> EventRequest:
    """Return the event delivery of a document.

    Raises `InvalidEventRequest` or `UnsupportedEventWireVersion`.
    """
    request = _REQUEST.parse(data)
    _check(request)
    return request


def _check(request: EventRequest) -> None:
    try:
        check_object(request.event_json, what="the event")
    except InvalidPayload as error:
        raise InvalidEventRequest(str(error)) from error


def check_object(text: str, *, what: str) -> None:
    """Check that text is a JSON object; raise `InvalidPayload`."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"{what} has a lone surrogate at index {error.start}") from error
    check_json(data, what=what)
    if not data.lstrip(b" \t\r\n").startswith(b"{"):
        raise InvalidPayload(f"{what} is not a JSON object")
