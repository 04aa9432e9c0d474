"""Charges that are killed, frozen, repeated and left without a reply: the bank counts them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import bank, payer
from tests.acceptance.children import Child, notes, query, run, running, until
from tests.acceptance.payer import CANARIES, POLICIES, Plan

_SCENARIOS = int(os.environ.get("PERDURE_TEST_BANK_SCENARIOS", "40"))
_SEED = int(os.environ.get("PERDURE_TEST_BANK_SEED", "11"))
_AT_ONCE = 3 * (os.cpu_count() or 1)
_SHORT_LEASE_SECONDS = 0.5

KINDS = tuple(POLICIES)
WRITES = ("claim", "settle", "doubt", "resend", "lookup", "asked")
POINTS = (
    *(f"commit.{moment} receipt.{write}" for write in WRITES for moment in ("begin", "done")),
    "effect.send",
    "bank.send",
    "bank.asked charge",
    "bank.asked look",
    "bank.looked",
    "effect.sent",
)
SEND_FAULTS = ("", "", "", "drop", "lose", "late", "hang", "refuse")
LOOKUP_FAULTS = ("", "", "drop", "late", "void")


@dataclass(frozen=True)
class Target:
    """A running bank."""

    port: int
    books: Path

    def charges(self, account: str) -> int:
        counted = "SELECT count(*) FROM charges WHERE account = ?"
        ((count,),) = query(self.books, counted, account)
        return count


@dataclass(frozen=True)
class Step:
    """Processes that pay at the same time; the first one may freeze until the others are done."""

    plans: tuple[Plan, ...]


class Scenario:
    """One account, a folder for the receipts of those who charge it, and what they said."""

    def __init__(self, folder: Path, target: Target, account: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.target = target
        self.account = account

    def child(self, plan: Plan) -> Child:
        return Child(self.folder, payer.pay, self.folder, self.target.port, self.account, plan)

    def take(self, step: Step) -> None:
        with ExitStack() as stack:
            children: list[Child] = []
            for plan in step.plans:
                children.append(self.child(plan))
                stack.callback(children[-1].kill)
                if plan.freeze:
                    self._until_frozen(children[-1])
            if step.plans[0].freeze:
                # Who froze with the write lock in its hands is thawed while the others wait.
                self._wait(children[1:], 2.0)
                if children[0].alive:
                    children[0].signal(signal.SIGCONT)
            self._wait(children, 60.0)
            for child in children:
                assert child.wait() in {0, -signal.SIGKILL}, child.said()

    def outcomes(self) -> list[str]:
        return [line["outcome"] for line in notes(self.folder / "outcomes.log")]

    def receipt(self) -> dict[str, Any]:
        database = self.folder / "receipts.db"
        if not database.exists():
            return {}
        names = ("state", "attempt", "exhausted", "residual_duplicate_risk")
        rows = query(database, f"SELECT {', '.join(names)} FROM receipts")
        return dict(zip(names, rows[0], strict=True)) if rows else {}

    def wrong(self, kind: str) -> list[str]:
        """Name what is wrong with what the bank counted, the receipt says and callers heard."""
        charges, outcomes = self.target.charges(self.account), self.outcomes()
        found: list[str] = []
        if "done" in outcomes and not charges:
            found.append("a caller was told of a charge that the bank has not")
        if kind in CANARIES:
            return [*found, *(["charged twice"] if charges > 1 else [])]
        receipt = self.receipt()
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
        if (state == "completed") != (outcomes[-1] == "done"):
            found.append(f"the last caller was told {outcomes[-1]}")
        return found

    def _until_frozen(self, child: Child) -> None:
        frozen = self.folder / "frozen.log"
        until(lambda: frozen.exists() or not child.alive)
        if child.alive:
            time.sleep(_SHORT_LEASE_SECONDS)

    def _wait(self, children: Sequence[Child], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while any(child.alive for child in children) and time.monotonic() < ends:
            time.sleep(0.005)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Keep one bank for all accounts."""
    folder = tmp_path_factory.mktemp("bank")
    with running(folder, bank.serve, folder / "books.db", folder / "port") as serving:
        until((folder / "port").exists, serving)
        yield Target(int((folder / "port").read_text()), folder / "books.db")


def test_a_payer_killed_at_any_point_charges_at_most_once(target: Target, tmp_path: Path) -> None:
    cases: list[tuple[str, tuple[str, int]]] = []
    for kind in KINDS:
        place = tmp_path / kind
        place.mkdir()
        cases += [(kind, crash) for crash in _points(target, place, f"all of {kind}", kind)]

    def survive(number: int) -> None:
        kind, crash = cases[number]
        scenario = Scenario(tmp_path / f"at-{number}", target, f"at-{number}")
        scenario.take(Step((Plan(kind, crash=crash),)))
        assert scenario.outcomes() == [], crash
        if crash[0] == "effect.send":
            assert scenario.receipt()["state"] == "in_flight"
        scenario.take(Step((Plan(kind),)))
        assert scenario.wrong(kind) == [], (kind, crash)
        if kind in {"idempotent", "queryable"}:
            assert target.charges(scenario.account) == 1, crash

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(survive, range(len(cases))))
    print(f"killed at {len(cases)} points")


@pytest.mark.parametrize("kind", ["idempotent", "queryable"])
def test_a_recovery_killed_at_any_point_is_recovered(
    target: Target, tmp_path: Path, kind: str
) -> None:
    sent = Step((Plan(kind, faults=("late",), crash=("bank.asked charge", 1)),))
    reference = Scenario(tmp_path / "reference", target, f"recovery {kind}")
    reference.take(sent)
    crashes = _points(target, reference.folder, reference.account, kind)
    assert target.charges(reference.account) == 1  # not sent again while the first may arrive

    def survive(number: int) -> None:
        scenario = Scenario(tmp_path / f"at-{number}", target, f"{kind} recovery {number}")
        for step in (sent, Step((Plan(kind, crash=crashes[number]),)), Step((Plan(kind),))):
            scenario.take(step)
        assert scenario.wrong(kind) == [], crashes[number]
        assert target.charges(scenario.account) == 1, crashes[number]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(survive, range(len(crashes))))
    print(f"killed the recovery at {len(crashes)} points")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("freeze", ["commit.done receipt.claim", "effect.send", "effect.sent"])
def test_a_payer_that_froze_past_its_lease_does_not_charge_again(
    target: Target, tmp_path: Path, kind: str, freeze: str
) -> None:
    scenario = Scenario(tmp_path / "frozen", target, f"{kind}, {freeze}")
    frozen = Plan(kind, freeze=freeze, lease_seconds=_SHORT_LEASE_SECONDS)
    scenario.take(Step((frozen, Plan(kind, wait_seconds=20))))
    scenario.take(Step((Plan(kind),)))
    assert scenario.wrong(kind) == []
    assert notes(tmp_path / "frozen" / "frozen.log")
    if kind in {"idempotent", "queryable"}:
        assert set(scenario.outcomes()) == {"done"}
        assert target.charges(scenario.account) == 1


def test_whatever_happens_nobody_is_charged_twice(target: Target, tmp_path: Path) -> None:
    def survive(number: int) -> tuple[str, str, int]:
        chance = random.Random(f"{_SEED}/{number}")
        kind = chance.choice(KINDS)
        steps = _steps(chance, kind)
        scenario = Scenario(tmp_path / f"s-{number}", target, f"s-{number}")
        for step in steps:
            scenario.take(step)
        assert scenario.wrong(kind) == [], (number, kind, steps, scenario.outcomes())
        return kind, scenario.receipt()["state"], target.charges(scenario.account)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ends = Counter(pool.map(survive, range(_SCENARIOS)))
    for (kind, state, charges), count in sorted(ends.items()):
        print(f"{count:5} {kind}: {state}, {charges} charges")
    assert {kind for kind, _, _ in ends} == set(KINDS)


@pytest.mark.parametrize("kind", CANARIES)
def test_the_same_scenarios_find_those_who_think_it_is_easy(
    target: Target, tmp_path: Path, kind: str
) -> None:
    found: Counter[str] = Counter()
    for number in range(100):
        chance = random.Random(f"{_SEED}/{number}")
        scenario = Scenario(tmp_path / f"c-{number}", target, f"{kind}-{number}")
        for step in _steps(chance, kind):
            scenario.take(step)
        found.update(scenario.wrong(kind))
        if found:
            return
    pytest.fail(f"a {kind} sender passed")


def _points(target: Target, folder: Path, account: str, kind: str) -> list[tuple[str, int]]:
    """Return every point of a payment that nobody kills."""
    run(folder, payer.list_points, folder, target.port, account, Plan(kind))
    passed = (folder / "points").read_text().splitlines()
    return [(point, passed[: index + 1].count(point)) for index, point in enumerate(passed)]


def _steps(chance: random.Random, kind: str) -> list[Step]:
    steps = [_step(chance, kind) for _ in range(chance.choice([1, 1, 2, 2, 3]))]
    return [*steps, Step((Plan(kind, wait_seconds=30.0),))]


def _step(chance: random.Random, kind: str) -> Step:
    plans = [_plan(chance, kind) for _ in range(chance.choice([1, 1, 2, 3]))]
    if chance.random() < 0.15 and kind not in CANARIES:
        # A freeze inside the target's client, after the last check, is what no guard can see.
        points = [point for point in POINTS if kind != "queryable" or point != "bank.send"]
        plans[0] = replace(
            plans[0], freeze=chance.choice(points), lease_seconds=_SHORT_LEASE_SECONDS
        )
    return Step(tuple(plans))


def _plan(chance: random.Random, kind: str) -> Plan:
    crash = None
    if chance.random() < 0.6:
        crash = chance.choice([(chance.choice(POINTS), 1), ("", chance.randint(1, 40))])
    return Plan(
        kind,
        faults=tuple(chance.choices(SEND_FAULTS, k=4)),
        lookups=tuple(chance.choices(LOOKUP_FAULTS, k=3)),
        crash=crash,
        wait_seconds=chance.choice([0.0, 0.0, 0.5]),
    )
