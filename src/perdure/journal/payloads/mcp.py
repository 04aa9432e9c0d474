from __future__ import annotations

import enum
from typing import Final

from msgspec import UNSET, UnsetType

from perdure.canonical import check_json
from perdure.errors import (
    InvalidMcpRequest,
    InvalidMcpResponse,
    InvalidPayload,
    SensitiveMcpHeader,
    UnsupportedMcpWireVersion,
)
from perdure.journal.payloads.envelope import Envelope
from perdure.journal.payloads.exact import I64, U64, Exact, OneOf
from perdure.journal.payloads.header import Header

MCP_VERSION: Final = 2
"""The version of the MCP documents that this release writes and reads."""


class LogLevel(enum.StrEnum):
    """From which severity on a server is to send its log."""

    DEBUG = "debug"
    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    ALERT = "alert"
    EMERGENCY = "emergency"


class ProgressToken(OneOf, frozen=True, kw_only=True):
    """What the progress of a request is reported under."""

    integer: I64 | UnsetType = UNSET
    string: str | UnsetType = UNSET


class McpMetadata(Exact, frozen=True, kw_only=True):
    """What goes along with a request."""

    progress_token: ProgressToken | None = None
    log_level: LogLevel | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


class McpRequest(Exact, frozen=True, kw_only=True):
    """The input of an MCP request; `params_json` and `capabilities_json` are JSON as text.

    `max_round_trips` bounds how often the server may ask back. No header authenticates: whoever
    sends the request adds those.
    """

    method: str
    params_json: str
    routing_name: str | None = None
    headers: tuple[Header, ...] = ()
    metadata: McpMetadata = McpMetadata()
    client_name: str
    client_version: str
    capabilities_json: str = "{}"
    max_round_trips: U64 = 16
    deliver_events: bool = False


class McpResponse(Exact, frozen=True, kw_only=True):
    """The output of an MCP request: the bare result and the events before it, JSON as text."""

    result_json: str
    events_json: tuple[str, ...] = ()


_REQUEST: Final = Envelope(
    McpRequest,
    "the MCP request",
    InvalidMcpRequest,
    UnsupportedMcpWireVersion,
    version=MCP_VERSION,
    payload_kind="protocol_request",
)
_RESPONSE: Final = Envelope(
    McpResponse,
    "the MCP response",
    InvalidMcpResponse,
    UnsupportedMcpWireVersion,
    version=MCP_VERSION,
)


def encode_mcp_request(request: McpRequest) -> bytes:
    """Return the document of an MCP request.

    Raises `SensitiveMcpHeader`, then `InvalidMcpRequest`. Neither the method nor the round trips
    are looked at, which the reader does.
    """
    _check_request(request)
    return _REQUEST.encode(request)


def parse_mcp_request(data: bytes) -> McpRequest:
    """Return the MCP request of a document.

    Raises, in this order: `InvalidMcpRequest` for the shape, `UnsupportedMcpWireVersion`,
    `InvalidMcpRequest` for the method or the round trips, `SensitiveMcpHeader`, and
    `InvalidMcpRequest` for the JSON in it.
    """
    request = _REQUEST.parse(data)
    if not request.method or not request.max_round_trips:
        raise InvalidMcpRequest("the MCP request has no method, or allows no round trip")
    _check_request(request)
    return request


def encode_mcp_response(response: McpResponse) -> bytes:
    """Return the document of an MCP response; raise `InvalidMcpResponse`."""
    _check_response(response)
    return _RESPONSE.encode(response)


def parse_mcp_response(data: bytes) -> McpResponse:
    """Return the MCP response of a document.

    Raises `InvalidMcpResponse` or `UnsupportedMcpWireVersion`.
    """
    response = _RESPONSE.parse(data)
    _check_response(response)
    return response


def _check_request(request: McpRequest) -> None:
    for header in request.headers:
        if header.authenticates():
            raise SensitiveMcpHeader(
                f"the header {header.name[:80]!r} of the MCP request authenticates, and what is"
                " stored must not: add it where the request is sent"
            )
    documents = {"params_json": request.params_json, "capabilities_json": request.capabilities_json}
    for name, text in documents.items():
        _check_text(text, f"the {name} of the MCP request", InvalidMcpRequest)


def _check_response(response: McpResponse) -> None:
    for text in (response.result_json, *response.events_json):
        _check_text(text, "the result or an event of the MCP response", InvalidMcpResponse)


def _check_text(text: str, what: str, refuse: type[InvalidMcpRequest | InvalidMcpResponse]) -> None:
    try:
        check_json(text.encode(), what=what)
    except (InvalidPayload, ValueError) as error:
        raise refuse(str(error)) from error
