from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.errors import InvalidFunction, InvalidPayload, OperationFailed
from perdure.retry import Advice, RetryPolicy, advice_of, backoff_ms, retryable

NOW = datetime(2026, 10, 21, 7, 27, 55, tzinfo=UTC).timestamp()


class Busy(Exception):
    def __init__(self, retry_after: Any = None, headers: dict[str, str] | None = None) -> None:
        self.retry_after = retry_after
        self.response = SimpleNamespace(headers=headers)


class Direct(Exception):
    """Has its headers at hand, as what frameworks make of a response does."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Refused(Exception):
    retryable = False


def failed(*, retryable: bool) -> OperationFailed:
    return OperationFailed("r/s/1", code="E", message="", retryable=retryable)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError(), True),
        (ExceptionGroup("", [ValueError()]), True),
        (Refused(), False),
        (InvalidPayload(), False),
        (failed(retryable=True), True),
        (failed(retryable=False), False),
        (asyncio.CancelledError(), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_which_failures_are_retryable(error: BaseException, expected: bool) -> None:
    assert retryable(error) is expected


def test_attempts_count_every_try() -> None:
    policy = RetryPolicy(attempts=3)
    assert [policy.allows(OSError(), attempt) for attempt in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    assert not RetryPolicy(attempts=1).allows(OSError(), 1)


def test_retry_on_takes_types_or_a_function() -> None:
    for chosen in (OSError, (OSError, KeyError), lambda error: isinstance(error, OSError)):
        policy = RetryPolicy(retry_on=chosen)
        assert policy.allows(ConnectionError(), 1)
        assert not policy.allows(ValueError(), 1)
    assert not RetryPolicy().allows(Refused(), 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 0},
        {"initial_seconds": -1.0},
        {"maximum_seconds": float("inf")},
        {"most_delay_seconds": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidFunction, match=next(iter(arguments))):
        RetryPolicy(**arguments)


def test_the_window_doubles_up_to_the_maximum_and_the_delay_stays_within() -> None:
    for retry_number, window in ((0, 250), (1, 250), (2, 500), (6, 8000), (10**9, 8000)):
        delays = {backoff_ms(f"run-{run}", retry_number, 1) for run in range(300)}
        assert max(delays) <= window
        assert max(delays) > window * 0.9
        assert min(delays) < window * 0.1
    assert backoff_ms("run-1", 10**9, 1, initial_ms=0) == 0


def test_the_delay_is_fixed_by_run_retry_and_request() -> None:
    policy = RetryPolicy()
    assert policy.delay_ms("run-1", 2, 3) == 431
    assert policy.delay_ms("run-1", 2, 4) != 431


def test_retry_after_replaces_the_jitter_and_is_capped() -> None:
    assert RetryPolicy().delay_ms("run-1", 1, 1, 3.0) == 3000
    assert RetryPolicy().delay_ms("run-1", 1, 1, 0.0004) == 1
    assert RetryPolicy().delay_ms("run-1", 1, 1, 36_000.0) == 8000
    assert RetryPolicy(maximum_seconds=60).delay_ms("run-1", 1, 1, 30.0) == 30_000
    ignoring = RetryPolicy(respect_retry_after=False)
    assert ignoring.delay_ms("run-1", 1, 1, 3.0) == 20


def test_a_delay_has_to_fit_into_what_is_left() -> None:
    policy = RetryPolicy(most_delay_seconds=10)
    assert policy.affords(4000, 6000)
    assert not policy.affords(4001, 6000)
    assert not policy.affords(0, 10_001)
    assert RetryPolicy().affords(1 << 60, 1 << 60)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Busy(0), 0.0),
        (Busy(1.5), 1.5),
        (Busy("2"), 2.0),
        (Busy(headers={"Retry-After": "5"}), 5.0),
        (Busy(headers={"retry-after": "5"}), 5.0),
        (Busy(headers={"retry-after": "5", "retry-after-ms": "1250"}), 1.25),
        (Busy(headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), 5.0),
        (Busy(headers={"Retry-After": "Wednesday, 21-Oct-26 07:28:00 GMT"}), 5.0),
        (Busy(headers={"Retry-After": "Wed Oct 21 07:28:00 2026"}), 5.0),
        (Busy(99, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), 5.0),
        (Busy(headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}), 0.0),
        (Busy(4, headers={"retry-after": "Wed, 99 Oct 2026 07:28:00 GMT"}), 4.0),
        (Busy(headers={}), None),
        (Busy(-1), None),
        (Busy(float("nan")), None),
        (Busy("soon"), None),
        (Busy([]), None),
        (Direct(retry_after="6"), 6.0),
        (ValueError(), None),
    ],
)
def test_where_retry_after_is_found(error: Exception, seconds: float | None) -> None:
    assert advice_of(error, NOW).retry_after_seconds == seconds


def test_what_else_a_server_says() -> None:
    told = Direct(
        x_ratelimit_remaining_requests="0",
        anthropic_ratelimit_tokens_remaining="1e99",
        request_id="r" * 200,
    )
    assert advice_of(told, NOW) == Advice(None, 0, (1 << 63) - 1, "r" * 128)
    odd = Direct(x_ratelimit_remaining_requests="few", x_request_id="a\nb")
    assert advice_of(odd, NOW) == Advice()
