"""How a process charges an account: its plan, what happens to it, and the bank as it sees it."""

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

from perdure.effects.answer import Answer, Landed, NeverWill, NotYet
from perdure.effects.identity import OperationIdentity
from perdure.errors import EffectRejected
from perdure.testing.crash import CrashAt
from tests.acceptance.children import note

TIMEOUT_SECONDS = 1.0
UNANSWERED_SECONDS = (0.1, 0.4, 1.6)
"""How long after a lookup without an answer the next one is: shorter here than in earnest."""
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


def probe_of(folder: Path, plan: Plan) -> Callable[[str], None]:
    """Return what freezes and kills this process where its plan says so."""
    crash = CrashAt(*plan.crash) if plan.crash else None
    frozen = False

    def probe(point: str) -> None:
        nonlocal frozen
        if plan.freeze and not frozen and is_at(point, plan.freeze):
            frozen = True
            note(folder / "frozen.log", point=point)
            os.kill(os.getpid(), signal.SIGSTOP)
        if crash:
            crash(point)

    return probe


def is_at(point: str, place: str) -> bool:
    """Return whether a point is the one that a plan names by its first words."""
    return (point + " ").startswith(place + " ")
