"""A process that charges an account once: with `guard`, or as those do who think it is easy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import perdure.storage.postgres
import perdure.storage.sqlite  # noqa: F401 - so that a fork has it
from perdure.effects import reconcile
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectError, EffectRejected
from perdure.receipts import ReceiptStore, guard
from perdure.testing.crash import CrashPoints
from tests.acceptance.bank import SETTLE_SECONDS
from tests.acceptance.charging import (
    CANARIES,
    TIMEOUT_SECONDS,
    UNANSWERED_SECONDS,
    Client,
    Plan,
    probe_of,
)
from tests.acceptance.children import note
from tests.storages import url_of

POLICIES = {
    "idempotent": EffectPolicy(
        support=SideEffectSupport.IDEMPOTENT, timeout_seconds=TIMEOUT_SECONDS
    ),
    "queryable": EffectPolicy(
        support=SideEffectSupport.OUTCOME_QUERYABLE,
        timeout_seconds=TIMEOUT_SECONDS,
        settle_seconds=SETTLE_SECONDS,
        reconcile_attempts=4,
    ),
    "ask": EffectPolicy(timeout_seconds=TIMEOUT_SECONDS),
    "retry": EffectPolicy(on_ambiguous=OnAmbiguous.RETRY, timeout_seconds=TIMEOUT_SECONDS),
}


def pay(folder: Path, port: int, account: str, plan: Plan) -> None:
    """Charge an account once and note what came of it."""
    reconcile._UNANSWERED_SECONDS = UNANSWERED_SECONDS
    outcome = asyncio.run(_outcome(folder, port, account, plan, probe_of(folder, plan)))
    note(folder / "outcomes.log", outcome=outcome, kind=plan.kind)


def list_points(folder: Path, port: int, account: str, plan: Plan) -> None:
    """Charge an account and write the points that were passed, one a line."""
    points = CrashPoints()
    asyncio.run(_outcome(folder, port, account, plan, points))
    (folder / "points").write_text("\n".join(points.passed))


async def _outcome(
    folder: Path, port: int, account: str, plan: Plan, probe: Callable[[str], None]
) -> str:
    client = Client(port, plan, probe)
    identity = OperationIdentity(account, "charge", "bank")
    if plan.kind in CANARIES:
        return await _canary(folder, client, identity, plan, probe)
    store = ReceiptStore(
        url_of(folder, "receipts.db"), lease_seconds=plan.lease_seconds, probe=probe
    )
    try:
        async with store:
            result = await guard(
                store,
                identity,
                client.charge,
                policy=POLICIES[plan.kind],
                lookup=client.lookup if plan.kind == "queryable" else None,
                wait_seconds=plan.wait_seconds,
            )
    except EffectError as error:
        return type(error).__name__
    assert result == account
    return "done"


async def _canary(
    folder: Path,
    client: Client,
    identity: OperationIdentity,
    plan: Plan,
    probe: Callable[[str], None],
) -> str:
    mark = folder / "mark"
    if plan.kind == "mark-then-send" and mark.exists():
        return "done"
    probe("commit.begin receipt.claim")
    if plan.kind == "mark-then-send":
        mark.touch()
    probe("effect.send")
    for _ in range(3 if plan.kind == "naive" else 1):
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await client.charge(identity)
        except EffectRejected:
            return "EffectRejected"
        except (OSError, TimeoutError):
            continue
        probe("effect.sent")
        mark.touch()
        return "done"
    return "failed"
