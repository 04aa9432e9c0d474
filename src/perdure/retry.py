from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.errors import InvalidFunction, PerdureError

_MOST: Final = (1 << 63) - 1
_NAME_LIMIT: Final = 128


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
    operation's identity chooses. What the server asked for in a Retry-After replaces it, up to
    `maximum_seconds`, if `respect_retry_after`. `most_delay_seconds` is what all delays of an
    operation may take together: a retry whose delay is more than what is left of it is not made.
    None for no such limit.
    """

    attempts: int = 3
    initial_seconds: float = 0.25
    maximum_seconds: float = 8.0
    respect_retry_after: bool = True
    most_delay_seconds: float | None = None
    retry_on: RetryOn = retryable

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidFunction(
                f"RetryPolicy(attempts={self.attempts}): attempts counts every try, the first"
                " included, so it is 1 or more"
            )
        for name in ("initial_seconds", "maximum_seconds", "most_delay_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
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

    def affords(self, delay_ms: int, spent_ms: int) -> bool:
        """Return whether a delay fits into what is left once delays of `spent_ms` were waited."""
        most = self.most_delay_seconds
        return most is None or delay_ms <= round(most * 1000) - spent_ms

    def delay_ms(
        self,
        run_id: str,
        retry_number: int,
        request_number: int,
        retry_after_seconds: float | None = None,
    ) -> int:
        """Return how many milliseconds to wait before retry number `retry_number`, from 1.

        `request_number` is the sequence of the operation that failed, and `retry_after_seconds`
        what its server asked for, or None. Equal arguments give equal delays, in every process.
        """
        return backoff_ms(
            run_id,
            retry_number,
            request_number,
            initial_ms=round(self.initial_seconds * 1000),
            maximum_ms=round(self.maximum_seconds * 1000),
            retry_after_seconds=retry_after_seconds if self.respect_retry_after else None,
        )


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


class Advice(msgspec.Struct, frozen=True):
    """What a server said, with a failure, about being asked again; None for what it did not say.

    `retry_after_seconds` is how long to wait, `remaining_requests` and `remaining_tokens` are what
    is left of its limits, and `request_id` is its own name for the request that failed.
    """

    retry_after_seconds: float | None = None
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    request_id: str | None = None


def advice_of(error: BaseException, now: float) -> Advice:
    """Return what a server said with the failure that an exception stands for.

    It is read from the headers of `error.response`, or from `error.headers`; a `Retry-After` that
    is not there from the number `error.retry_after`. One that is a date counts from `now`, in wall
    seconds, UTC.
    """
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    get: Any = getattr(headers or getattr(error, "headers", None), "get", None)

    def told(*names: str) -> Any:
        spellings = [spelling for name in names for spelling in (name, name.title())]
        values = map(get, spellings) if callable(get) else ()
        return next((value for value in values if value is not None), None)

    waits = (
        _seconds(told("retry-after-ms"), unit=0.001),
        _seconds(told("retry-after")),
        _seconds_until(told("retry-after"), now),
        _seconds(getattr(error, "retry_after", None)),
    )
    return Advice(
        next((seconds for seconds in waits if seconds is not None), None),
        _count(told("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining")),
        _count(told("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining")),
        _name(told("x-request-id", "request-id")),
    )


def _seconds(value: Any, unit: float = 1.0) -> float | None:
    try:
        seconds = float(value) * unit
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until(value: Any, now: float) -> float | None:
    """Return how long it is to an HTTP date, 0 when it is over, or None for what is no date."""
    from email.utils import parsedate_to_datetime  # costs more at start-up than most programs need

    try:
        date = parsedate_to_datetime(value)
        # The oldest of the three forms names no zone, and means UTC as the others do.
        at = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return max(0.0, at - now)


def _count(value: Any) -> int | None:
    number = _seconds(value)
    return None if number is None else min(int(number), _MOST)


def _name(value: Any) -> str | None:
    known = isinstance(value, str) and value.isascii() and value.isprintable()
    return cast("str", value)[:_NAME_LIMIT] if known else None
