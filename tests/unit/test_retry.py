from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.errors import InvalidFunction, InvalidPayload, OperationFailed
from perdure.retry import RetryPolicy, backoff_ms, retry_after_seconds, retryable


class Busy(Exception):
    def __init__(self, retry_after: Any = None, headers: dict[str, str] | None = None) -> None:
        self.retry_after = retry_after
        self.response = SimpleNamespace(headers=headers)


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
    [{"attempts": 0}, {"initial_seconds": -1.0}, {"maximum_seconds": float("inf")}],
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
    assert policy.delay_seconds("run-1", 2, 3) == 0.431
    assert policy.delay_seconds("run-1", 2, 3, ValueError()) == 0.431
    assert policy.delay_seconds("run-1", 2, 4) != 0.431


def test_retry_after_replaces_the_jitter_and_is_capped() -> None:
    assert RetryPolicy().delay_seconds("run-1", 1, 1, Busy(3)) == 3.0
    assert RetryPolicy().delay_seconds("run-1", 1, 1, Busy(36_000)) == 8.0
    assert RetryPolicy(maximum_seconds=60).delay_seconds("run-1", 1, 1, Busy(30)) == 30.0
    ignoring = RetryPolicy(respect_retry_after=False)
    assert ignoring.delay_seconds("run-1", 1, 1, Busy(3)) == 0.02


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Busy(0), 0.0),
        (Busy(1.5), 1.5),
        (Busy(headers={"Retry-After": "5"}), 5.0),
        (Busy(headers={"retry-after": "5"}), 5.0),
        (Busy(headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), None),
        (Busy(headers={}), None),
        (Busy(-1), None),
        (Busy(float("nan")), None),
        (Busy("soon"), None),
        (Busy([]), None),
        (ValueError(), None),
    ],
)
def test_where_retry_after_is_found(error: Exception, seconds: float | None) -> None:
    assert retry_after_seconds(error) == seconds
