"""Charges that are killed, frozen, repeated and left without a reply: the bank counts them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import payer
from tests.acceptance.charging import CANARIES, Plan
from tests.acceptance.children import notes
from tests.acceptance.payer import POLICIES
from tests.acceptance.samples import LONG, ON_SERVER, SEED, STORAGES, Crash, amount, sample
from tests.acceptance.scenarios import (
    SCENARIOS,
    SHORT_LEASE_SECONDS,
    Scenario,
    Step,
    Target,
    draw_faults,
    draw_steps,
    found_wrong,
    kind_of,
    survive_all,
    survive_crashes,
    wrong_receipt,
)
from tests.postgres_server import PostgresServer

pytestmark = LONG

KINDS = tuple(POLICIES)
SERVER_SCENARIOS = amount("SERVER_SCENARIOS", usual=20, full=25)
SURE = {"idempotent", "queryable"}
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


class Guarded(Scenario):
    """Payments with `guard`."""

    pay = payer.pay
    list_points = payer.list_points
    database = "receipts.db"

    def wrong(self, kind: str) -> list[str]:
        """Name what is wrong with what the bank counted, the receipt says and callers heard."""
        charges, outcomes = self.charges, self.outcomes()
        found: list[str] = []
        if "done" in outcomes and not charges:
            found.append("a caller was told of a charge that the bank has not")
        if kind in CANARIES:
            return [*found, *(["charged twice"] if charges > 1 else [])]
        receipt = self.receipt()
        found += wrong_receipt(kind, receipt, charges)
        if (receipt["state"] == "completed") != (outcomes[-1] == "done"):
            found.append(f"the last caller was told {outcomes[-1]}")
        return found


def test_a_payer_killed_at_any_point_charges_at_most_once(target: Target, tmp_path: Path) -> None:
    passed: list[tuple[str, Crash]] = []
    for kind in KINDS:
        scenario = Guarded(tmp_path / kind, target, f"all of {kind}")
        passed += [(kind, crash) for crash in scenario.points(Plan(kind))]
    cases = sample(passed, kind_of)

    def survive(number: int) -> None:
        kind, crash = cases[number]
        scenario = Guarded(tmp_path / f"at-{number}", target, f"at-{number}")
        scenario.take(Step((Plan(kind, crash=crash),)))
        assert scenario.outcomes() == [], crash
        if crash[0] == "effect.send":
            assert scenario.receipt()["state"] == "in_flight"
        scenario.take(Step((Plan(kind),)))
        assert scenario.wrong(kind) == [], (kind, crash)
        if kind in SURE:
            assert scenario.charges == 1, crash

    survive_all(survive, range(len(cases)))
    print(f"killed at {len(cases)} of {len(passed)} points")


def test_a_recovery_killed_at_any_point_is_recovered(target: Target, tmp_path: Path) -> None:
    passed: list[tuple[str, Crash]] = []
    for kind in sorted(SURE):
        reference = Guarded(tmp_path / kind, target, f"recovery {kind}")
        reference.take(_sent(kind))
        passed += [(kind, crash) for crash in reference.points(Plan(kind))]
        assert reference.charges == 1  # not sent again while the first may arrive
    cases = sample(passed, kind_of)

    def survive(number: int) -> None:
        kind, crash = cases[number]
        scenario = Guarded(tmp_path / f"at-{number}", target, f"{kind} recovery {number}")
        scenario.take(_sent(kind), Step((Plan(kind, crash=crash),)), Step((Plan(kind),)))
        assert scenario.wrong(kind) == [], cases[number]
        assert scenario.charges == 1, cases[number]

    survive_all(survive, range(len(cases)), at_once=12)  # most of the time they wait
    print(f"killed the recovery at {len(cases)} of {len(passed)} points")


def _sent(kind: str) -> Step:
    return Step((Plan(kind, faults=("late",), crash=("bank.asked charge", 1)),))


def test_a_payer_that_froze_past_its_lease_does_not_charge_again(
    target: Target, tmp_path: Path
) -> None:
    points = ("commit.done receipt.claim", "effect.send", "effect.sent")
    cases = [(kind, point) for kind in KINDS for point in points]

    def survive(number: int) -> None:
        kind, point = cases[number]
        scenario = Guarded(tmp_path / str(number), target, f"frozen {number}")
        frozen = Plan(kind, freeze=point, lease_seconds=SHORT_LEASE_SECONDS)
        scenario.take(Step((frozen, Plan(kind, wait_seconds=20))), Step((Plan(kind),)))
        assert scenario.wrong(kind) == [], cases[number]
        assert notes(scenario.folder / "frozen.log")
        if kind in SURE:
            assert set(scenario.outcomes()) == {"done"}
            assert scenario.charges == 1

    survive_all(survive, range(len(cases)), at_once=len(cases))


def test_whatever_happens_nobody_is_charged_twice(target: Target, tmp_path: Path) -> None:
    ends = Counter(survive_all(_survivor(target, tmp_path), range(SCENARIOS)))
    for (kind, state, charges), count in sorted(ends.items()):
        print(f"{count:5} {kind}: {state}, {charges} charges")
    assert {kind for kind, _, _ in ends} == set(KINDS)


@ON_SERVER
def test_whatever_happens_to_the_server_nobody_is_charged_twice(
    target_at_own_server: Target, own_server: PostgresServer, tmp_path: Path
) -> None:
    survive = _survivor(target_at_own_server, tmp_path)
    ends, crashes = survive_crashes(survive, range(SERVER_SCENARIOS), own_server, f"{SEED}")
    print(f"{len(ends)} scenarios, in which the server crashed {crashes} times")
    assert crashes > 1


def _survivor(target: Target, tmp_path: Path) -> Callable[[int], tuple[str, str, int]]:
    """Return what lives through a scenario of a number and tells how it ended."""

    def survive(number: int) -> tuple[str, str, int]:
        chance = random.Random(f"{SEED}/{number}")
        kind = KINDS[number % len(KINDS)]
        steps = _steps(chance, kind)
        scenario = Guarded(tmp_path / f"s-{number}", target, f"s-{number}")
        scenario.take(*steps)
        assert scenario.wrong(kind) == [], (number, kind, steps, scenario.outcomes())
        return kind, scenario.receipt()["state"], scenario.charges

    return survive


@pytest.mark.parametrize("places", STORAGES[:1], indirect=True)
@pytest.mark.parametrize("kind", CANARIES)
def test_the_same_scenarios_find_those_who_think_it_is_easy(
    target: Target, tmp_path: Path, kind: str
) -> None:
    def wrong(number: int) -> list[str]:
        chance = random.Random(f"{SEED}/{number}")
        scenario = Guarded(tmp_path / f"c-{number}", target, f"{kind}-{number}")
        scenario.take(*_steps(chance, kind))
        return scenario.wrong(kind)

    assert found_wrong(wrong, 100), f"a {kind} sender passed"


def _steps(chance: random.Random, kind: str) -> list[Step]:
    def draw() -> Plan:
        faults = draw_faults(chance, POINTS, 40)
        return Plan(kind, **faults, wait_seconds=chance.choice([0.0, 0.0, 0.5]))

    # A freeze inside the target's client, after the last check, is what no guard can see.
    freezes = [point for point in POINTS if kind != "queryable" or point != "bank.send"]
    last = Plan(kind, wait_seconds=30.0)
    return draw_steps(chance, draw, last, () if kind in CANARIES else freezes)
