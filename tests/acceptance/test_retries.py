"""Retries and chance across crashes: the same numbers, the same delays, the remaining time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import (
    App,
    Context,
    OperationFailed,
    RetryPolicy,
    WorkerOptions,
    effect,
    operation,
)
from perdure.journal.payloads import RetryRequest, encode_retry_request
from perdure.testing.crash import CrashAt
from perdure.testing.manual_clock import ManualClock
from tests.acceptance.children import note, notes, query, run, running

_POLICY = RetryPolicy(attempts=4, initial_seconds=600.0, maximum_seconds=3600.0)
# Longer than any delay that the clock is advanced by at once.
_WORKER = WorkerOptions(lease_seconds=1_000_000.0)
_STARTED = 1_700_000_000.0
_SUCCEEDS_AT = 3
_DECLARED: dict[str, Callable[[Any], Any]] = {
    "read only": operation(read_only=True, retry=_POLICY),
    "not sent": effect(not_sent=ConnectionError, retry=_POLICY),
    "refused": effect(
        rejected=ConnectionError, retry=msgspec.structs.replace(_POLICY, retry_on=ConnectionError)
    ),
    "idempotent": effect(support="idempotent", retry=_POLICY),
    "at least once": effect(on_ambiguous="retry", retry=_POLICY),
}
"""What may be tried again: it changes nothing, or did not, or a repeat is harmless or wanted."""
_DELAYS = [_POLICY.delay_ms("run-1", attempt, 1) / 1000 for attempt in (1, 2)]


def book(
    folder: Path, now: float, share: float | None, succeeds_at: int, declared: str = "read only"
) -> None:
    """Book with retries on a clock of its own; crash after a share of the second delay."""
    clock = ManualClock(now=now)
    app = App(f"sqlite:///{folder}/runs.db", worker=_WORKER, clock=clock)

    async def booking() -> str:
        note(folder / "tries.log", clock=clock.now())
        number = len(notes(folder / "tries.log"))
        if number < succeeds_at:
            raise ConnectionError(f"try {number}")
        return "booked"

    declared_booking = _DECLARED[declared](booking)

    @app.run(version=1)
    async def trip(context: Context) -> str:
        return await context.call(declared_booking)

    async def advance() -> None:
        while True:
            await clock.until_sleeping()
            (remaining,) = clock.sleeping
            note(folder / "sleeps.log", seconds=remaining)
            if share is not None and len(notes(folder / "tries.log")) == 2:
                clock.advance(remaining * share)
                os.kill(os.getpid(), signal.SIGKILL)
            clock.advance(remaining)
            await asyncio.sleep(0)

    async def main() -> None:
        async with app:
            turning = asyncio.create_task(advance())
            handle = await app.start(trip, run_id="run-1")
            try:
                note(folder / "result.log", result=await handle.result())
            finally:
                turning.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("declared", _DECLARED)
def test_a_crash_during_a_backoff_costs_neither_the_attempt_nor_the_time_waited(
    tmp_path: Path, declared: str
) -> None:
    """T17: two failures, a crash in the delay before the third attempt, and an hour off."""
    first, second = _DELAYS
    assert min(_DELAYS) > 1
    off = second * 0.25
    with running(tmp_path, book, tmp_path, _STARTED, 0.5, _SUCCEEDS_AT, declared) as child:
        child.die()
    now = _STARTED + first + second * 0.5 + off
    run(tmp_path, book, tmp_path, now, None, _SUCCEEDS_AT, declared)
    slept = [line["seconds"] for line in notes(tmp_path / "sleeps.log")]
    assert slept == pytest.approx([first, second, second * 0.25])
    tried = [line["clock"] - _STARTED for line in notes(tmp_path / "tries.log")]
    assert tried == pytest.approx([0, first, first + second])
    assert [line["result"] for line in notes(tmp_path / "result.log")] == ["booked"]
    assert _records(tmp_path) == [
        ("call.1.retry", 1, "success", 1),
        ("call.1.retry", 2, "success", 1),
        ("call", 1, "success", _SUCCEEDS_AT),
    ]
    run(tmp_path, book, tmp_path, now, None, _SUCCEEDS_AT, declared)
    assert len(notes(tmp_path / "tries.log")) == 3
    assert query(tmp_path / "runs.db", "SELECT count(*) FROM timers") == [(0,)]


def test_a_delay_that_ended_while_nobody_ran_is_not_waited_again(tmp_path: Path) -> None:
    with running(tmp_path, book, tmp_path, _STARTED, 0.5, _SUCCEEDS_AT) as child:
        child.die()
    run(tmp_path, book, tmp_path, _STARTED + 86400, None, _SUCCEEDS_AT)
    assert len(notes(tmp_path / "sleeps.log")) == 2
    assert len(notes(tmp_path / "tries.log")) == 3


@pytest.mark.parametrize("declared", _DECLARED)
def test_attempts_are_counted_across_crashes(tmp_path: Path, declared: str) -> None:
    with running(tmp_path, book, tmp_path, _STARTED, 0.5, 99, declared) as child:
        child.die()
    with running(tmp_path, book, tmp_path, _STARTED, None, 99, declared) as child:
        assert child.wait() == 1
    assert "ConnectionError: try 4" in child.said()
    assert len(notes(tmp_path / "tries.log")) == _POLICY.attempts
    if declared in {"idempotent", "at least once"}:
        # The last one has no answer either: a person is asked.
        assert query(tmp_path / "runs.db", "SELECT state FROM runs") == [("needs_attention",)]
        assert query(tmp_path / "runs.db", "SELECT state FROM receipts") == [("ambiguous",)]
        assert _records(tmp_path)[-1] == ("call.1.retry", 3, "success", 1)
    else:
        assert _records(tmp_path)[-1] == ("call", 1, "failure", _POLICY.attempts)


def _records(folder: Path) -> list[tuple[Any, ...]]:
    return query(
        folder / "runs.db",
        "SELECT step_id, sequence, status, attempt FROM records ORDER BY record_number",
    )


# --- chance --------------------------------------------------------------------------------------


def draw(folder: Path, crash: tuple[str, int] | None) -> None:
    """Use every kind of chance and write down what came, unrecorded, on each execution."""
    app = App(f"sqlite:///{folder}/runs.db", probe=CrashAt(*crash) if crash else None)

    @operation(read_only=True, retry=RetryPolicy(attempts=2, initial_seconds=0.01))
    async def failing(number: int) -> None:
        raise ConnectionError(f"number {number}")

    @operation(read_only=True)
    async def gate(number: int) -> int:
        return number

    @app.run(version=1)
    async def drawing(context: Context) -> str:
        drawn: list[Any] = [context.run_id, str(context.uuid()), str(context.uuid())]
        generator = context.random()
        drawn += [generator.random(), generator.getrandbits(128), context.random().random()]
        for number in (1, 2):
            branch = context.branch("side")
            drawn += [str(branch.uuid()), branch.random().random()]
            try:
                await branch.call(failing, number)
            except OperationFailed as failure:
                drawn.append(str(failure))
        drawn.append((await context.now()).isoformat())
        note(folder / "drawn.log", drawn=drawn)
        for number in (1, 2):
            await context.call(gate, number)
        return "drawn"

    random.seed(os.getpid())
    assert app.run_sync(drawing, run_id="run-1") == "drawn"


def test_chance_and_delays_are_the_same_on_every_recovery(tmp_path: Path) -> None:
    """T11: three executions in three processes."""
    for crash in (("operation.call call/2", 1), ("operation.call call/3", 1)):
        with running(tmp_path, draw, tmp_path, crash) as child:
            child.die()
    run(tmp_path, draw, tmp_path, None)
    first, *others = [line["drawn"] for line in notes(tmp_path / "drawn.log")]
    assert others == [first, first]
    chance = [value for value in first if not isinstance(value, str) or len(value) == 36]
    assert len(set(chance)) == len(chance) == 9
    delays = "SELECT step_id, CAST(input_tail AS TEXT) FROM records WHERE kind = 'retry_delay'"
    delay_ms = RetryPolicy(initial_seconds=0.01).delay_ms("run-1", 1, 1)
    delay = RetryRequest(
        delay_ms=delay_ms,
        retry_number=1,
        model_requests=1,
        total_delay_ms=delay_ms,
        error_name="ConnectionError",
    )
    written = [document for _, document in query(tmp_path / "runs.db", delays)]
    assert written == [encode_retry_request(delay).decode()] * 2
