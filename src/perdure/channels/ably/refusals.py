from __future__ import annotations

from typing import Final

from ably.util.exceptions import AblyException  # pyright: ignore[reportMissingTypeStubs]

from perdure.errors import (
    HistoryFailed,
    InvalidSessionArgument,
    SendFailed,
    SessionError,
    SessionForbidden,
    SubscriptionFailed,
)

_IMMUTABLE: Final = 93002
_UNKNOWN: Final = 50000
_LATER: Final = frozenset({408, 429})
_NOT_NOW: Final = frozenset({40001, 90000, 90001})
"""What the client says itself while the connection or the channel is in no state to send."""


def not_sent(error: Exception, channel: str) -> SessionError:
    """Return what a write has failed with: `SendFailed` where the same may succeed later."""
    if isinstance(error, TypeError | ValueError):
        return InvalidSessionArgument(f"a message cannot be written as it is: {error}")
    code, status = _numbers(error)
    if code == _IMMUTABLE:
        return SessionForbidden(
            f"messages of the channel {channel!r} cannot be changed, so nothing can be streamed"
            f" ({code}); allow message updates and appends in the rules of its namespace"
        )
    told = f"the channel {channel!r} refused a message: {_told(error)}"
    if _is_forbidden(code, status):
        return SessionForbidden(f"{told}; the client's key or token has to allow it")
    if status < 500 and not _may_pass(code, status):
        return InvalidSessionArgument(told)
    return SendFailed(told)


def not_attached(error: Exception, channel: str) -> SessionError:
    """Return what an attempt to attach has failed with."""
    if _is_forbidden(*_numbers(error)):
        return SessionForbidden(f"the channel {channel!r} may not be read: {_told(error)}")
    return SubscriptionFailed(f"the channel {channel!r} is not attached: {_told(error)}")


def not_read(error: Exception, channel: str) -> SessionError:
    """Return what the reading of history has failed with."""
    if _is_forbidden(*_numbers(error)):
        return SessionForbidden(
            f"the history of the channel {channel!r} may not be read: {_told(error)}"
        )
    return HistoryFailed(f"the history of the channel {channel!r} was not read: {_told(error)}")


def _is_forbidden(code: int, status: int) -> bool:
    return status in (401, 403) and not _may_pass(code, status)


def _may_pass(code: int, status: int) -> bool:
    token_expired = 40140 <= code < 40150
    connection = 80000 <= code < 90000
    return token_expired or connection or code in _NOT_NOW or status in _LATER


def _numbers(error: Exception) -> tuple[int, int]:
    """Return code and status of an error; what the client says nothing of may be tried again."""
    code: int | None = getattr(error, "code", None) if isinstance(error, AblyException) else None
    status: int | None = getattr(error, "status_code", None) if code else None
    return code or _UNKNOWN, status or 500


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "there was no answer in time"
    return str(error) or type(error).__name__
