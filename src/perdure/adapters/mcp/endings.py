from __future__ import annotations

from typing import Final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
)

from perdure.adapters.mcp.sending import Sending
from perdure.errors import EffectNotSent
from perdure.journal.record import Failure
from perdure.wording import printable

_UNREAD: Final = {METHOD_NOT_FOUND, HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION}
_TURNED_AWAY: Final = {401, 403, 404, 405, 413, 415}
_TOO_MANY: Final = 429


def is_lost(error: MCPError, sending: Sending) -> bool:
    """Return whether a connection is of no more use after an error on it."""
    session_gone = error.code == INVALID_REQUEST and sending.status == 404
    return sending.lost or error.code == CONNECTION_CLOSED or session_gone


def ending_of(error: MCPError, sending: Sending, *, has_effect: bool, trusted: bool) -> Failure:
    """Return the failure that an error of the protocol is recorded as.

    It is a refusal where the server cannot have done anything; of a trusted one also where it says
    so. Raises `EffectNotSent` where it got nothing, and `ConnectionError` or `TimeoutError` where
    it gave no answer: those are worth another try, if the request has no effect.
    """
    if not sending.may_have_left:
        raise EffectNotSent(f"the MCP server got nothing: {error.message}") from error
    status = sending.status or 0
    if not sending.asked_back and (
        status == _TOO_MANY or (status in _TURNED_AWAY and error.code == INVALID_REQUEST)
    ):
        raise EffectNotSent(f"the MCP server took nothing: HTTP {status}") from error
    if sending.lost or error.code == CONNECTION_CLOSED or (status >= 500 and not has_effect):
        raise ConnectionError(f"no answer of the MCP server: {error.message}") from error
    if error.code == REQUEST_TIMEOUT:
        raise TimeoutError(f"no answer of the MCP server in time: {error.message}") from error
    unread = error.code in _UNREAD or sending.status in _TURNED_AWAY
    refused = not sending.asked_back and (unread or (trusted and error.code == INVALID_PARAMS))
    name = "EffectRejected" if has_effect and refused else "McpError"
    said = {"code": error.code, "message": error.message, "status": sending.status}
    return Failure(
        name,
        type_name="mcp.shared.exceptions.MCPError",
        message=printable(f"{error.message} ({error.code})"),
        data_json=msgspec.json.encode(said),
    )
