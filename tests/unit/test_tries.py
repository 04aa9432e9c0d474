from __future__ import annotations

from typing import Any

import pytest

from perdure import Context, OperationFailed, RetryPolicy, operation
from perdure.journal import Invocation, OperationKind, Success
from perdure.journal.payloads import parse_retry_request
from perdure.journal.store import NewRecord, timer_of
from perdure.testing.manual_clock import ManualClock
from perdure.tries import Tries
from tests.conformance.pydantic_ai.journal import MemoryJournal

CALL = Invocation("run-1", "call", 7, OperationKind.TOOL_CALL, "busy", b"{}")


class BusyError(Exception):
    def __init__(self, retry_after: str) -> None:
        self.headers = {"retry-after": retry_after, "x-request-id": "r-1"}


def test_what_was_decided_about_a_failure_stays_decided_while_time_goes_on() -> None:
    clock = ManualClock(now=0)
    policy = RetryPolicy(most_delay_seconds=5)
    tries = Tries(CALL, policy, None, clock)
    late, soon = (BusyError(f"Thu, 01 Jan 1970 00:00:{second} GMT") for second in ("06", "04"))
    assert tries.delay_after(late) is None
    clock.advance(1)
    assert tries.delay_after(late) is None
    first = tries.delay_after(soon)
    assert first is not None
    clock.advance(1)
    assert tries.delay_after(soon) is first
    assert first.seconds == 3.0
    tries.next(first)
    assert tries.number == 2
    second = tries.delay_after(soon)
    assert second is not None
    assert (second.seconds, second.total_ms) == (2.0, 5000)
    request = parse_retry_request(tries.request(second, "BusyError"))
    assert (request.retry_number, request.model_requests, request.total_delay_ms) == (2, 7, 5000)
    assert (request.retry_after_seconds, request.provider_request_id) == (2, "r-1")


def test_without_a_policy_nothing_is_tried_again() -> None:
    tries = Tries(CALL, None, None, ManualClock())
    assert tries.retries is None
    assert tries.delay_after(OSError()) is None


def delayed(journal: MemoryJournal, number: int, document: bytes) -> Any:
    """Record a delay as an earlier execution did, and return its row as a timer's."""
    invocation = Invocation(
        "run-1", "call.1.retry", number, OperationKind.RETRY_DELAY, "perdure.retry", document
    )
    journal.records.append(NewRecord(invocation, b"", Success(b"{}"), 1, 0.0, 0.0, nested=True))
    return timer_of(invocation, b"", wake_at=0.0)


@pytest.mark.parametrize("left_ms", [0, 1])
def test_what_earlier_executions_waited_counts_in_either_form_of_its_record(left_ms: int) -> None:
    calls: list[int] = []

    @operation(
        name="busy",
        read_only=True,
        retry=RetryPolicy(attempts=9, most_delay_seconds=10 + left_ms / 1000),
    )
    async def busy() -> None:
        calls.append(1)
        raise BusyError("0.001" if len(calls) == 1 else "9")

    async def code(context: Context) -> None:
        await context.call(busy)

    journal = MemoryJournal()
    delayed(journal, 1, b'{"delay_ms":7000,"error_name":"BusyError"}')
    timer = delayed(journal, 2, b'{"delay_ms":3000,"error_name":"BusyError"}')
    journal.records.pop()
    journal.timers[timer.step_id, timer.sequence] = timer
    with pytest.raises(OperationFailed, match="BusyError"):
        journal.run(code)
    assert len(calls) == 1 + left_ms
    assert journal.record("call").attempt == 2 + len(calls)
    if len(calls) == 2:
        document = journal.record("call.1.retry", 3).invocation.input_json
        assert parse_retry_request(document).total_delay_ms == 10_001
