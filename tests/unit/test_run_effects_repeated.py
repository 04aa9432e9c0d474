"""Effects inside runs that are sent again, as they declare that they may be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, OperationIdentity, RetryPolicy, effect
from perdure.effects.answer import NotYet
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, once, run
from tests.receipts import Bank


@pytest.mark.parametrize("retry", [None, RetryPolicy(attempts=2)], ids=["plain", "retries"])
def test_what_the_target_has_not_seen_is_sent_again_whatever_the_retries(
    tmp_path: Path, retry: RetryPolicy | None
) -> None:
    bank, clock = Bank(ConnectionError("no reply"), "paid", answers=[NotYet()]), ManualClock()
    app = app_on(tmp_path, clock=clock)

    @effect(support="outcome_queryable", timeout_seconds=60.0, retry=retry)
    async def charge(operation: OperationIdentity) -> str:
        return await bank.send(operation)

    charge.lookup(bank.lookup)

    @app.run(version=1)
    async def paying(context: Context) -> str:
        return await context.call(charge)

    async def turn_the_clock() -> Any:
        paid = asyncio.create_task(once(app, paying))
        while not paid.done():
            sleeping = asyncio.create_task(clock.until_sleeping())
            await asyncio.wait({paid, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            clock.advance(0.1)
            sleeping.cancel()
        return await paid

    assert run(turn_the_clock()) == "paid"
    assert (bank.sent, bank.asked) == (2, 1)


def test_an_attempt_that_took_too_long_is_tried_again_as_one_that_raised(tmp_path: Path) -> None:
    bank = Bank(asyncio.Event(), "paid")
    app = app_on(tmp_path, clock=ManualClock())  # by which a claim takes none of the time

    @effect(
        support="idempotent",
        timeout_seconds=0.1,
        retry=RetryPolicy(attempts=2, initial_seconds=0.0, retry_on=TimeoutError),
    )
    async def charge(operation: OperationIdentity) -> str:
        return await bank.send(operation)

    @app.run(version=1)
    async def paying(context: Context) -> str:
        return await context.call(charge)

    assert run(once(app, paying)) == "paid"
    assert bank.sent == 2
