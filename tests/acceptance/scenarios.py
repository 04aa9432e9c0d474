"""Processes that charge one account at a bank, one after the other and at the same time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.acceptance.charging import Plan
from tests.acceptance.children import Child, notes, query, run, until, until_ended
from tests.acceptance.samples import Crash, amount, moment_of
from tests.postgres_server import PostgresServer
from tests.storages import Places, exists

PlanT = TypeVar("PlanT", bound=Plan)
T = TypeVar("T")

SCENARIOS = amount("BANK_SCENARIOS", usual=5, full=25)
SHORT_LEASE_SECONDS = 1.0
SEND_FAULTS = ("", "", "", "drop", "lose", "late", "hang", "refuse")
LOOKUP_FAULTS = ("", "", "drop", "late", "void")
_AT_ONCE = 3 * (os.cpu_count() or 1)
_DOUBTFUL = {"effect.send", "bank.asked charge"}
_RECEIPT = ("operation_key", "state", "attempt", "version", "exhausted", "residual_duplicate_risk")


@dataclass(frozen=True)
class Target:
    """A running bank."""

    port: int
    books: Path
    places: Places

    def charges(self, account: str) -> int:
        """Count the charges of an account, when nothing is under way any more."""
        late = "SELECT 1 FROM under_way WHERE account = ?"
        until(lambda: not query(self.books, late, account))
        counted = "SELECT count(*) FROM charges WHERE account = ?"
        ((count,),) = query(self.books, counted, account)
        return count

    def refuses(self, account: str) -> bool:
        """Return whether the bank was asked to refuse whatever comes for an account."""
        voided = "SELECT 1 FROM voided WHERE account = ? AND sent_before IS NULL"
        return bool(query(self.books, voided, account))


@dataclass(frozen=True)
class Step:
    """Processes that pay at the same time; the first one may freeze until the others are done."""

    plans: tuple[Plan, ...]


class Scenario:
    """One account, a folder for what those keep who charge it, and what they said."""

    pay: Callable[[Path, int, str, Any], None]
    list_points: Callable[[Path, int, str, Any], None]
    database: str

    def __init__(self, folder: Path, target: Target, account: str) -> None:
        folder.mkdir()
        target.places.use(folder)
        self.folder = folder
        self.target = target
        self.account = account

    @property
    def charges(self) -> int:
        return self.target.charges(self.account)

    def take(self, *steps: Step) -> None:
        for step in steps:
            self._take(step)

    def points(self, plan: Plan) -> list[Crash]:
        """Return every point of a payment that nobody kills, as what kills it there."""
        run(self.folder, type(self).list_points, *self._arguments(plan))
        passed = (self.folder / "points").read_text().splitlines()
        return [(point, passed[: index + 1].count(point)) for index, point in enumerate(passed)]

    def outcomes(self) -> list[str]:
        return [line["outcome"] for line in notes(self.folder / "outcomes.log")]

    def receipt(self) -> dict[str, Any]:
        return self.row(f"SELECT {', '.join(_RECEIPT)} FROM receipts", _RECEIPT)

    def row(self, statement: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the first row of what was kept, or nothing."""
        if not exists(self.folder, "receipts", self.database):
            return {}
        rows = query(self.folder / self.database, statement)
        return dict(zip(names, rows[0], strict=True)) if rows else {}

    def _arguments(self, plan: Plan) -> tuple[Path, int, str, Plan]:
        return self.folder, self.target.port, self.account, plan

    def _take(self, step: Step) -> None:
        with ExitStack() as stack:
            children: list[Child] = []
            for plan in step.plans:
                children.append(Child(self.folder, type(self).pay, *self._arguments(plan)))
                stack.callback(children[-1].kill)
                if plan.freeze:
                    self._until_frozen(children[-1])
            if step.plans[0].freeze:
                # Who froze with the write lock in its hands is thawed while the others wait.
                until_ended(children[1:], 2.0)
                if children[0].alive:
                    children[0].signal(signal.SIGCONT)
            until_ended(children, 60.0)
            for child in children:
                assert child.wait() in {0, -signal.SIGKILL}, child.said()

    def _until_frozen(self, child: Child) -> None:
        frozen = self.folder / "frozen.log"
        until(lambda: frozen.exists() or not child.alive)
        if child.alive:
            time.sleep(SHORT_LEASE_SECONDS)


def wrong_receipt(kind: str, receipt: dict[str, Any], charges: int) -> list[str]:
    """Name what is wrong with a receipt, by what the bank counted."""
    found: list[str] = []
    state, risk = receipt["state"], receipt["residual_duplicate_risk"]
    if charges > 1 and not (kind == "retry" and risk):
        found.append("charged twice")
    if state == "in_flight":
        found.append("left in flight")
    if state == "completed" and not charges:
        found.append("completed without a charge")
    if state == "failed" and charges and not risk:
        found.append("failed with a charge")
    if state == "ambiguous" and (
        kind == "idempotent" or (kind == "queryable" and not receipt["exhausted"])
    ):
        found.append("left in doubt")
    return found


def kind_of(case: tuple[str, Crash]) -> Hashable:
    """Tell crashes apart by what happens there, and in doubt also by what the bank can do."""
    kind, crash = case
    moment = moment_of(crash)
    return (kind, moment) if moment in _DOUBTFUL else moment


def survive_all(
    survive: Callable[[int], T], numbers: Iterable[int], at_once: int = _AT_ONCE
) -> list[T]:
    """Do something with each of some scenarios, several at once."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(survive, numbers))


def survive_crashes(
    survive: Callable[[int], T], numbers: Iterable[int], server: PostgresServer, seed: str
) -> tuple[list[T], int]:
    """Do something with each of some scenarios while their server crashes now and then.

    Returns also how often it did. It is restarted in this thread, which is the one it ends with.
    """
    chance = random.Random(seed)
    crashes = 0
    took = 0.0
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(survive_all, survive, numbers)
        # It stands for about as long as it takes to come back, also on a slow machine.
        while not wait([done], took + chance.uniform(0.2, 1.5)).done:
            began = time.monotonic()
            server.crash()
            took = time.monotonic() - began
            crashes += 1
        return done.result(), crashes


def found_wrong(wrong: Callable[[int], list[str]], most: int) -> list[str]:
    """Return what is wrong with the first scenarios with which anything is."""
    at_once = 2 * _AT_ONCE  # most of the time they wait for what does not come
    for first in range(0, most, at_once):
        found = survive_all(wrong, range(first, first + at_once), at_once)
        if any(found):
            return [what for each in found for what in each]
    return []


def draw_steps(
    chance: random.Random, draw: Callable[[], PlanT], last: PlanT, freezes: Sequence[str]
) -> list[Step]:
    """Return steps of drawn plans, and one more that goes well; freeze at one of some points."""
    steps = [_draw_step(chance, draw, freezes) for _ in range(chance.choice([1, 1, 2, 2, 3]))]
    return [*steps, Step((last,))]


def _draw_step(chance: random.Random, draw: Callable[[], PlanT], freezes: Sequence[str]) -> Step:
    plans = [draw() for _ in range(chance.choice([1, 1, 2, 3]))]
    if freezes and chance.random() < 0.15:
        plans[0] = replace(
            plans[0], freeze=chance.choice(freezes), lease_seconds=SHORT_LEASE_SECONDS
        )
    return Step(tuple(plans))


def draw_faults(chance: random.Random, points: Sequence[str], most: int) -> dict[str, Any]:
    """Return what goes wrong in a process: at the bank, and with the process itself."""
    crash = None
    if chance.random() < 0.6:
        crash = chance.choice([(chance.choice(points), 1), ("", chance.randint(1, most))])
    return {
        "faults": tuple(chance.choices(SEND_FAULTS, k=4)),
        "lookups": tuple(chance.choices(LOOKUP_FAULTS, k=3)),
        "crash": crash,
    }
