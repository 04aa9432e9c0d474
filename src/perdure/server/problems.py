from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    ChannelNotReady,
    ContinuityLost,
    EngineClosed,
    HistoryFailed,
    InvalidInvocation,
    InvalidOptions,
    InvalidPayload,
    LifecycleNotPublished,
    MessageConflict,
    PerdureError,
    RunConflict,
    RunEnded,
    RunErased,
    SendFailed,
    SessionClosed,
    SessionError,
    SessionForbidden,
    StorageError,
    SubscriptionFailed,
    UnknownApproval,
    UnknownFunction,
    UnknownRun,
)

_log: Final = logging.getLogger("perdure.server")

# The first line that fits decides, and `SessionError`s of no line go by their own status.
_STATUS: Final[tuple[tuple[type[PerdureError], int], ...]] = (
    (InvalidPayload, 400),
    (InvalidInvocation, 400),
    (InvalidOptions, 400),
    (SessionForbidden, 403),
    (UnknownRun, 404),
    (UnknownApproval, 404),
    (AlreadyResolved, 409),
    (ApprovalChanged, 409),
    (ApprovalClosed, 409),
    (MessageConflict, 409),
    (RunConflict, 409),
    (RunEnded, 409),
    (RunErased, 410),
    (UnknownFunction, 501),
    # The channel or the store cannot do it at the moment, or the server is about to close.
    (ChannelNotReady, 503),
    (ContinuityLost, 503),
    (HistoryFailed, 503),
    (LifecycleNotPublished, 503),
    (SendFailed, 503),
    (SessionClosed, 503),
    (SubscriptionFailed, 503),
    (EngineClosed, 503),
    (StorageError, 503),
)
_ROUTER: Final = {
    404: ("UnknownPath", "there is no such endpoint; names in a path are percent-encoded"),
    405: ("WrongMethod", "the endpoint is asked with another method; `allow` says with which"),
}
_WITHOUT_AGENT: Final = (
    "nothing answers in the sessions of this server, or it cannot tell what is to; its log says why"
)


class Refused(HTTPException):
    """A request that is not served; `code` says why to programs and `detail` to people."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


class Document(Response):
    """A JSON document."""

    media_type = "application/json"

    def __init__(
        self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, status, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        """Return the document as bytes."""
        return msgspec.json.encode(content)


async def say_refused(request: Request, error: Exception) -> Response:
    """Return what a request comes to that is refused, of ours or of the router."""
    del request
    assert isinstance(error, HTTPException)  # it is registered for these
    if isinstance(error, Refused):
        code, message = error.code, error.detail
    else:
        code, message = _ROUTER.get(error.status_code, ("Refused", error.detail))
    return _problem(error.status_code, code, message, error.headers)


async def say_failed(request: Request, error: Exception) -> Response:
    """Return what a request comes to that any other error ended."""
    status = _status_of(error)
    if status < 500:
        return _problem(status, type(error).__name__, str(error))
    # What storage says of itself, such as where it is, is not for those outside.
    _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    if status == 500:
        return _problem(status, "ServerFailed", "the server failed; its log says why")
    if status == 501:
        return _problem(status, type(error).__name__, _WITHOUT_AGENT)
    message = "this cannot be done right now; try the same again later"
    return _problem(status, type(error).__name__, message, {"retry-after": "1"})


def _status_of(error: Exception) -> int:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return error.status if isinstance(error, SessionError) else 500


def _problem(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return Document({"code": code, "message": message}, status, headers)
