from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, RECORD_LIMIT_BYTES
from perdure.errors import InvalidOptions

LONGEST_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""The longest duration; a server that is given far longer ones does not go on."""

MOST_ATTEMPTS: Final = (1 << 31) - 1
LARGEST_COEFFICIENT_MILLI: Final = 1_000_000


class OperationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation is executed on Temporal, and how large it may be.

    `start_to_close_seconds` bounds one attempt, and `schedule_to_close_seconds` all of them. With
    `heartbeat_seconds` a worker tells that often that it lives: an attempt of one that was killed
    is given up so long after, and a handler learns that it was cancelled. An attempt follows
    another when its worker is gone, and never because a handler failed.

    `input_limit_bytes` is for the input of an operation, `request_limit_bytes` for the document
    that it is started with, `record_limit_bytes` for what comes back. Durations count in
    milliseconds. Raises `InvalidOptions`.
    """

    start_to_close_seconds: float = 300.0
    schedule_to_close_seconds: float = 900.0
    heartbeat_seconds: float | None = None
    initial_interval_seconds: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval_seconds: float = 60.0
    maximum_attempts: int = 5
    input_limit_bytes: int = 1024 * 1024
    request_limit_bytes: int = 2 * 1024 * 1024
    record_limit_bytes: int = RECORD_LIMIT_BYTES

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name.endswith("_seconds") and getattr(self, name) is not None:
                self._check(name, 1, LONGEST_MS, "from 0.001, and no more than ten years")
        self._check("backoff_coefficient", 1000, LARGEST_COEFFICIENT_MILLI, "from 1 to 1000")
        self._check_whole("maximum_attempts", MOST_ATTEMPTS)
        self._check_whole("input_limit_bytes", INPUT_LIMIT_BYTES)
        self._check_whole("request_limit_bytes", RECORD_LIMIT_BYTES)
        self._check_whole("record_limit_bytes", RECORD_LIMIT_BYTES)
        self._check_order("start_to_close_seconds", "schedule_to_close_seconds")
        self._check_order("initial_interval_seconds", "maximum_interval_seconds")
        if self.heartbeat_seconds is not None:
            self._check_order("heartbeat_seconds", "start_to_close_seconds")

    def _check(self, name: str, least: int, most: int, allowed: str) -> None:
        value: Any = getattr(self, name)
        number = type(value) in {int, float} and math.isfinite(value)
        if not number or not least <= thousandths(value) <= most:
            raise InvalidOptions(f"{name} of operations is {allowed}, not {value!r}")

    def _check_whole(self, name: str, most: int) -> None:
        value: Any = getattr(self, name)
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidOptions(f"{name} of operations is an int from 1 to {most}, not {value!r}")

    def _check_order(self, shorter: str, longer: str) -> None:
        if getattr(self, shorter) > getattr(self, longer):
            raise InvalidOptions(f"{shorter} of operations is longer than their {longer}")


def thousandths(value: float) -> int:
    """Return a number in thousandths, as documents have it."""
    return round(value * 1000)
