"""A process that charges an account once: with `guard`, or as those do who think it is easy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perdure.storage.sqlite  # noqa: F401 - so that a fork has it
from perdure.effects.answer import Answer, Landed, NeverWill, NotYet
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import EffectError, EffectRejected
from perdure.receipts import ReceiptStore, guard
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.bank import SETTLE_SECONDS
from tests.acceptance.children import note

TIMEOUT_SECONDS = 1.0
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
CANARIES = ("naive", "mark-then-send")


@dataclass(frozen=True)
class Plan:
    """What one process of a scenario does and what happens to it.

    `faults` are those of its sends and `lookups` those of its questions, in order; after them all
    goes well. It kills itself at `crash` and freezes at `freeze`.
    """

    kind: str
    faults: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    crash: tuple[str, int] | None = None
    freeze: str | None = None
    lease_seconds: float = 15.0
    wait_seconds: float = 0.0


def identity(account: str) -> OperationIdentity:
    return OperationIdentity(account, "charge", "bank")


class Client:
    """The bank as a process sees it."""

    def __init__(self, port: int, plan: Plan, probe: Callable[[str], None]) -> None:
        self._port = port
        self._honours = plan.kind == "idempotent"
        self._faults, self._lookups = list(plan.faults), list(plan.lookups)
        self._probe = probe

    async def charge(self, identity: OperationIdentity) -> str:
        fault = self._faults.pop(0) if self._faults else ""
        self._probe("bank.send")
        reply = await self._ask(
            "charge", identity, fault, honours=self._honours, sent_at=time.monotonic()
        )
        if "refused" in reply:
            raise EffectRejected(reply["refused"])
        return reply["charged"]

    async def lookup(self, identity: OperationIdentity) -> Answer:
        reply = await self._ask("look", identity, self._lookups.pop(0) if self._lookups else "")
        self._probe("bank.looked")
        if "never" in reply:
            return NeverWill()
        return Landed(reply["charged"]) if reply["charged"] else NotYet()

    async def _ask(self, do: str, identity: OperationIdentity, fault: str, **more: Any) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            request = {"do": do, "account": identity.run_id, "key": identity.operation_key}
            writer.write(json.dumps({**request, "fault": fault, **more}).encode() + b"\n")
            self._probe(f"bank.asked {do}")
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise ConnectionResetError("the bank hung up")
        return json.loads(line)


def pay(folder: Path, port: int, account: str, plan: Plan) -> None:
    """Charge an account once and note what came of it."""
    crash = CrashAt(*plan.crash) if plan.crash else None
    frozen = False

    def probe(point: str) -> None:
        nonlocal frozen
        if plan.freeze and not frozen and (point + " ").startswith(plan.freeze + " "):
            frozen = True
            note(folder / "frozen.log", point=point)
            os.kill(os.getpid(), signal.SIGSTOP)
        if crash:
            crash(point)

    outcome = asyncio.run(_outcome(folder, port, account, plan, probe))
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
    if plan.kind in CANARIES:
        return await _canary(folder, client, account, plan, probe)
    store = ReceiptStore(
        f"sqlite:///{folder}/receipts.db", lease_seconds=plan.lease_seconds, probe=probe
    )
    try:
        async with store:
            result = await guard(
                store,
                identity(account),
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
    folder: Path, client: Client, account: str, plan: Plan, probe: Callable[[str], None]
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
                await client.charge(identity(account))
        except EffectRejected:
            return "EffectRejected"
        except (OSError, TimeoutError):
            continue
        probe("effect.sent")
        mark.touch()
        return "done"
    return "failed"
