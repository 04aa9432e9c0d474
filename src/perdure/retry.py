from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from perdure.errors import InvalidFunction, PerdureError


def retryable(error: BaseException) -> bool:
    """Return whether a failure may be tried again, when nobody said otherwise.

    An exception with a boolean attribute `retryable` answers for itself. Else every ordinary
    exception may, because from outside a bug and a bad moment look alike; errors of perdure, and
    what is not an `Exception`, may not.
    """
    flag = getattr(error, "retryable", None)
    if isinstance(flag, bool):
        return flag
    return isinstance(error, Exception) and not isinstance(error, PerdureError)


RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which failures of an operation are tried again, how often, and after which delay.

    `attempts` counts every try, the first included. `retry_on` is an exception type, several, or a
    function that is given the exception. The window of the delay begins at `initial_seconds`,
    doubles with every retry up to `maximum_seconds`, and the delay is a fixed point in it that the
    operation's identity chooses. A Retry-After that the exception carries replaces it, up to
    `maximum_seconds`, if `respect_retry_after`.
    """

    attempts: int = 3
    initial_seconds: float = 0.25
    maximum_seconds: float = 8.0
    respect_retry_after: bool = True
    retry_on: RetryOn = retryable

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidFunction(
                f"RetryPolicy(attempts={self.attempts}): attempts counts every try, the first"
                " included, so it is 1 or more"
            )
        for name in ("initial_seconds", "maximum_seconds"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InvalidFunction(
                    f"RetryPolicy({name}={seconds}): a delay is a finite number of seconds, 0 or"
                    " more"
                )

    def allows(self, error: Exception, attempt: int) -> bool:
        """Return whether a try is to follow attempt number `attempt`, from 1, that raised."""
        if attempt >= self.attempts:
            return False
        chosen = self.retry_on
        if callable(chosen) and not isinstance(chosen, type):
            return chosen(error)
        return isinstance(error, chosen)

    def delay_seconds(
        self,
        run_id: str,
        retry_number: int,
        request_number: int,
        error: BaseException | None = None,
    ) -> float:
        """Return how long to wait before retry number `retry_number`, from 1.

        `request_number` is the sequence of the operation that failed and `error` its exception.
        Equal arguments give equal delays, in every process.
        """
        wanted = None
        if error is not None and self.respect_retry_after:
            wanted = retry_after_seconds(error)
        milliseconds = backoff_ms(
            run_id,
            retry_number,
            request_number,
            initial_ms=round(self.initial_seconds * 1000),
            maximum_ms=round(self.maximum_seconds * 1000),
            retry_after_seconds=wanted,
        )
        return milliseconds / 1000


def backoff_ms(
    run_id: str,
    retry_number: int,
    request_number: int,
    *,
    initial_ms: int = 250,
    maximum_ms: int = 8000,
    retry_after_seconds: float | None = None,
) -> int:
    """Return the delay of the wire contract: full jitter that the three numbers decide.

    `retry_after_seconds`, when known, is the delay instead, without jitter. Neither is more than
    `maximum_ms`.
    """
    if retry_after_seconds is not None:
        return min(math.ceil(retry_after_seconds * 1000), maximum_ms)
    doublings = min(max(retry_number - 1, 0), 64)
    window = min(initial_ms << doublings, maximum_ms)
    seed = hashlib.sha256(f"{run_id}/{retry_number}/{request_number}".encode()).digest()
    return int.from_bytes(seed[:8], "little") % (window + 1)


def retry_after_seconds(error: BaseException) -> float | None:
    """Return the Retry-After that an exception carries, or None.

    It is read from a number `error.retry_after`, else from `error.response.headers`, where it is
    taken as seconds; a date is not a duration, and gives None.
    """
    value: Any = getattr(error, "retry_after", None)
    if value is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        get = getattr(headers, "get", None)
        value = (get("retry-after") or get("Retry-After")) if callable(get) else None
    try:
        seconds = float(cast("float | str", value))
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
