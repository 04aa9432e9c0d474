"""A process that charges an account once inside a run, or as those do who think it is easy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perdure.storage.postgres
import perdure.storage.sqlite  # noqa: F401 - so that a fork has it
from perdure import (
    Context,
    OperationFailed,
    OperationIdentity,
    RetryPolicy,
    RunFailed,
    RunNeedsAttention,
    WorkerOptions,
    effect,
    operation,
)
from perdure.effects import reconcile
from perdure.testing.crash import CrashPoints
from tests.acceptance.bank import SETTLE_SECONDS
from tests.acceptance.charging import (
    TIMEOUT_SECONDS,
    UNANSWERED_SECONDS,
    Client,
    Plan,
    is_at,
    probe_of,
)
from tests.acceptance.children import note
from tests.storages import app_at

Probe = Callable[[str], None]
Pay = Callable[[Context, str], Awaitable[str]]

DECLARED: dict[str, dict[str, Any]] = {
    "idempotent": {"support": "idempotent"},
    "queryable": {
        "support": "outcome_queryable",
        "settle_seconds": SETTLE_SECONDS,
        "reconcile_attempts": 2,
    },
    "ask": {},
    "retry": {"on_ambiguous": "retry"},
    "tell": {"on_ambiguous": "tell"},
}
_NO_HURRY = RetryPolicy(attempts=99, initial_seconds=0.02, maximum_seconds=0.05)


@dataclass(frozen=True)
class RunPlan(Plan):
    """As a plan outside of runs; it also closes its App at `leave`, whatever is under way.

    `retries` is whether the charge declares retries.
    """

    leave: str | None = None
    retries: bool = False


def pay(folder: Path, port: int, account: str, plan: RunPlan) -> None:
    """Start the run that charges an account, or go on with it, and note what it came to."""
    reconcile._UNANSWERED_SECONDS = UNANSWERED_SECONDS
    outcome = asyncio.run(_outcome(folder, port, account, plan, probe_of(folder, plan)))
    note(folder / "outcomes.log", outcome=outcome, kind=plan.kind)


def list_points(folder: Path, port: int, account: str, plan: RunPlan) -> None:
    """Charge an account and write the points that were passed, one a line."""
    points = CrashPoints()
    asyncio.run(_outcome(folder, port, account, plan, points))
    (folder / "points").write_text("\n".join(points.passed))


async def _outcome(folder: Path, port: int, account: str, plan: RunPlan, probe: Probe) -> str:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()

    def watched(point: str) -> None:
        if plan.leave and is_at(point, plan.leave):
            loop.call_soon_threadsafe(leaving.set)
        probe(point)

    options = WorkerOptions(
        lease_seconds=plan.lease_seconds, drain_seconds=0.0, reconcile_seconds=0.05
    )
    app = app_at(folder, worker=options, probe=watched)
    pay = _pay(plan, Client(port, plan, watched))

    @app.run(version=1)
    async def paying(context: Context, account: str) -> str:
        try:
            assert await pay(context, account) == account
        except OperationFailed as failure:
            return failure.code
        return "done"

    async def finish() -> str:
        handle = await app.start(paying, account, run_id=account)
        try:
            return await handle.result()
        except (RunFailed, RunNeedsAttention) as error:
            return error.code

    async with app:
        ends = [asyncio.create_task(finish()), asyncio.create_task(leaving.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return await ends[0] if ends[0].done() else "left"


def _pay(plan: RunPlan, client: Client) -> Pay:
    match plan.kind:
        case "naive":
            return _naive(client)
        case "mark-then-send":
            return _marking(client)
        case _:
            return _declared(plan, client)


def _declared(plan: RunPlan, client: Client) -> Pay:
    retry = _NO_HURRY if plan.retries else None

    @effect(target="bank", timeout_seconds=TIMEOUT_SECONDS, retry=retry, **DECLARED[plan.kind])
    async def charge(operation: OperationIdentity, account: str) -> str:
        assert operation.run_id == account
        return await client.charge(operation)

    if plan.kind == "queryable":
        charge.lookup(client.lookup)
    return lambda context, account: context.call(charge, account)


def _naive(client: Client) -> Pay:
    """Return what calls a charge harmless, so that it may be called again."""
    thrice = RetryPolicy(attempts=3, initial_seconds=0.02)

    @operation(read_only=True, retry=thrice, timeout_seconds=TIMEOUT_SECONDS)
    async def charge(account: str) -> str:
        return await client.charge(OperationIdentity(account, "charge", "bank"))

    return lambda context, account: context.call(charge, account)


def _marking(client: Client) -> Pay:
    """Return what charges in the run's own code, unless an earlier execution said that it would."""

    async def pay(context: Context, account: str) -> str:
        marked = False

        @operation(read_only=True)
        async def mark() -> None:
            nonlocal marked
            marked = True

        await context.call(mark)
        if marked:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await client.charge(OperationIdentity(account, "charge", "bank"))
        return account

    return pay
