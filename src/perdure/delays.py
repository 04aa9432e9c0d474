from __future__ import annotations

import math
from typing import Final

import msgspec

from perdure.journal.invocation import Invocation, OperationKind

_RETRY_HANDLER: Final = "perdure.retry"


class _Delay(msgspec.Struct, frozen=True):
    delay_ms: int | None = None


_delays: Final = msgspec.json.Decoder(_Delay)


def retry_delay(of: Invocation, step_id: str, number: int, input_json: bytes) -> Invocation:
    """Return the delay before a retry of an operation; retries are numbered from 1."""
    return Invocation(
        of.run_id, step_id, number, OperationKind.RETRY_DELAY, _RETRY_HANDLER, input_json
    )


def whole_seconds(delay: Invocation) -> float:
    """Return how long a delay is when nothing has been waited yet; infinite until a moment."""
    milliseconds = _delays.decode(delay.input_json).delay_ms
    return math.inf if milliseconds is None else milliseconds / 1000
