"""Charges inside runs that are killed, frozen, left and taken over: the bank counts them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.effects.answer import Landed, NeverWill
from perdure.receipts import ReceiptStore
from tests.acceptance import run_payer
from tests.acceptance.charging import CANARIES
from tests.acceptance.children import notes
from tests.acceptance.run_payer import DECLARED, RunPlan
from tests.acceptance.samples import ON_SERVER, SEED, STORAGES, Crash, amount, sample
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
from tests.storages import url_of

KINDS = tuple(DECLARED)
SERVER_SCENARIOS = amount("SERVER_SCENARIOS", usual=20, full=25)
SURE = {"idempotent", "queryable"}
WRITES = (
    *("receipt.claim", "receipt.doubt", "receipt.resend", "receipt.lookup", "receipt.asked"),
    *("receipt.settle", "settle call/1", "begin_timer call.1.retry/1", "record call.1.retry/1"),
    *("register_worker", "start_run", "sweep", "claim_runs", "end_run", "retire_worker"),
)
UNGUARDED = ("operation.call call/1", "bank.send")
"""After the last check and before the request is out."""
POINTS = (
    *(f"commit.{moment} {write}" for write in WRITES for moment in ("begin", "done")),
    *("effect.send", *UNGUARDED, "bank.asked charge", "operation.called call/1", "effect.sent"),
    *("bank.asked look", "bank.looked"),
)
LEAVES = ("effect.send", "bank.asked charge", "commit.done receipt.settle", "bank.asked look")
_RUN = ("state", "output", "code")


class Run(Scenario):
    """Payments in one run."""

    pay = run_payer.pay
    list_points = run_payer.list_points
    database = "runs.db"

    def end(self) -> tuple[str, str]:
        """Return the state of the run, and what it returned or why it did not."""
        row = self.row("SELECT state, output, problem_code FROM runs", _RUN)
        output = row["output"]
        return row["state"], row["code"] if output is None else json.loads(output)

    def wrong(self, kind: str) -> list[str]:
        """Name what is wrong with what the bank counted, receipt and run say, and callers heard."""
        charges, (state, end) = self.charges, self.end()
        told = [outcome for outcome in self.outcomes() if outcome != "left"]
        found: list[str] = []
        if end == "done" and not charges:
            found.append("the run tells of a charge that the bank has not")
        if kind in CANARIES:
            return [*found, *(["charged twice"] if charges > 1 else [])]
        receipt = self.receipt()
        found += wrong_receipt(kind, receipt, charges)
        if end == "done" and charges > 1 and not receipt["residual_duplicate_risk"]:
            found.append("done with more than one charge")
        if (state, end) not in _ends(kind, receipt["state"]):
            found.append(f"{receipt['state']}, and the run {state}: {end}")
        # A run that waits for a person goes on when its target has told a worker after all.
        waited = {"EffectAmbiguous"} if kind == "queryable" else set[str]()
        if told[-1] != end or set(told) - waited - {end}:
            found.append(f"the run came to {end}, and callers were told {told}")
        return found

    def decide(self) -> None:
        """Settle the effect as a person would who looked at the bank."""
        decision = Landed(self.account) if self.charges else NeverWill()
        receipt = self.receipt()

        async def settle() -> None:
            async with ReceiptStore(url_of(self.folder, self.database)) as store:
                await store.settle(
                    receipt["operation_key"],
                    decision,
                    by="ada",
                    why="looked at the account",
                    expect_version=receipt["version"],
                )

        asyncio.run(settle())


def _ends(kind: str, receipt: str) -> set[tuple[str, str]]:
    """Return how a run may end whose only effect has a receipt of this state."""
    match receipt:
        case "completed":
            return {("completed", "done")}
        case "failed":
            return {("completed", "EffectRejected"), ("completed", "EffectNotSent")}
        case "ambiguous" if kind == "tell":
            return {("completed", "EffectAmbiguous")}
        case _:
            return {("needs_attention", "EffectAmbiguous")}


def _finish(scenario: Run, kind: str) -> None:
    """Do what a person does for a run that waits for one, and let it end."""
    if scenario.end()[0] != "needs_attention":
        return
    scenario.decide()
    scenario.take(Step((RunPlan(kind),)))
    if scenario.target.refuses(scenario.account) and not scenario.charges:
        assert scenario.end() == ("completed", "EffectRejected")
        return
    assert scenario.end() == ("completed", "done")
    assert scenario.charges == 1 or kind == "retry"


def test_a_run_killed_at_any_point_charges_at_most_once(target: Target, tmp_path: Path) -> None:
    passed: list[tuple[str, Crash]] = []
    for kind in KINDS:
        scenario = Run(tmp_path / kind, target, f"all-of-{kind}")
        points = scenario.points(RunPlan(kind))
        # A file that is being made knows nothing of effects.
        passed += [(kind, crash) for crash in points if not passed or "migrate" not in crash[0]]
    cases = sample(passed, kind_of)
    kill_and_finish(target, tmp_path, cases)
    print(f"killed at {len(cases)} of {len(passed)} points")


def kill_and_finish(target: Target, tmp_path: Path, cases: Sequence[tuple[str, Crash]]) -> None:
    """Kill a run at each of these points, and let it end in another process."""

    def survive(number: int) -> None:
        kind, crash = cases[number]
        scenario = Run(tmp_path / f"at-{number}", target, f"at-{number}")
        scenario.take(Step((RunPlan(kind, crash=crash),)))
        assert scenario.outcomes() == [], crash
        if crash[0] in {"effect.send", "operation.call call/1", "operation.called call/1"}:
            assert scenario.receipt()["state"] == "in_flight"
        scenario.take(Step((RunPlan(kind),)))
        assert scenario.wrong(kind) == [], (kind, crash)
        if kind in SURE:
            assert scenario.end() == ("completed", "done")
            assert scenario.charges == 1, crash
        _finish(scenario, kind)

    survive_all(survive, range(len(cases)))


def test_a_recovery_killed_at_any_point_is_recovered(target: Target, tmp_path: Path) -> None:
    passed: list[tuple[str, Crash]] = []
    for kind in sorted(SURE):
        reference = Run(tmp_path / kind, target, f"recovery-{kind}")
        reference.take(_sent(kind))
        passed += [(kind, crash) for crash in reference.points(RunPlan(kind))]
        assert reference.charges == 1  # not sent again while the first may arrive
    cases = sample(passed, kind_of)

    def survive(number: int) -> None:
        kind, crash = cases[number]
        scenario = Run(tmp_path / f"at-{number}", target, f"recovery-{kind}-{number}")
        scenario.take(_sent(kind), Step((RunPlan(kind, crash=crash),)), Step((RunPlan(kind),)))
        assert scenario.wrong(kind) == [], cases[number]
        assert scenario.end() == ("completed", "done")
        assert scenario.charges == 1, cases[number]

    survive_all(survive, range(len(cases)), at_once=12)  # most of the time they wait
    print(f"killed the recovery at {len(cases)} of {len(passed)} points")


def _sent(kind: str) -> Step:
    return Step((RunPlan(kind, faults=("late",), crash=("bank.asked charge", 1)),))


def test_a_worker_that_froze_past_its_lease_does_not_charge_again(
    target: Target, tmp_path: Path
) -> None:
    """T22: the run goes on in another worker, and the receipt says what may have happened."""
    points = ("commit.done receipt.claim", "effect.send", "operation.called call/1", "effect.sent")
    freeze_and_finish(target, tmp_path, [(kind, point) for kind in KINDS for point in points])


def freeze_and_finish(target: Target, tmp_path: Path, cases: Sequence[tuple[str, str]]) -> None:
    """Freeze a run at each of these points while another process goes on with it."""

    def survive(number: int) -> None:
        kind, point = cases[number]
        scenario = Run(tmp_path / str(number), target, f"frozen-{number}")
        frozen = RunPlan(kind, freeze=point, lease_seconds=SHORT_LEASE_SECONDS)
        scenario.take(Step((frozen, RunPlan(kind))), Step((RunPlan(kind),)))
        assert scenario.wrong(kind) == [], cases[number]
        assert notes(scenario.folder / "frozen.log")
        if kind in SURE:
            assert set(scenario.outcomes()) == {"done"}
            assert scenario.charges == 1
        _finish(scenario, kind)

    survive_all(survive, range(len(cases)), at_once=len(cases))


def test_an_answer_that_comes_when_another_worker_asks_changes_nothing(
    target: Target, tmp_path: Path
) -> None:
    """The slow answer, that nothing landed, is the last one: the first arrived in between."""
    scenario = Run(tmp_path / "asked", target, "asked-twice")
    sent = RunPlan("queryable", faults=("late",), crash=("bank.asked charge", 1))
    slow = RunPlan("queryable", freeze="bank.looked", lease_seconds=SHORT_LEASE_SECONDS)
    scenario.take(Step((sent,)), Step((slow, RunPlan("queryable"))))
    assert scenario.wrong("queryable") == []
    assert scenario.outcomes() == ["done", "done"]
    assert scenario.charges == 1


def test_whatever_happens_nobody_is_charged_twice(target: Target, tmp_path: Path) -> None:
    ends = Counter(survive_all(survivor(target, tmp_path), range(SCENARIOS)))
    for (kind, state, run, end, charges), count in sorted(ends.items()):
        print(f"{count:5} {kind}: {state}, {run} {end}, {charges} charges")
    assert {kind for kind, *_ in ends} == set(KINDS)


@ON_SERVER
def test_whatever_happens_to_the_server_nobody_is_charged_twice(
    target_at_own_server: Target, own_server: PostgresServer, tmp_path: Path
) -> None:
    survive = survivor(target_at_own_server, tmp_path)
    ends, crashes = survive_crashes(survive, range(SERVER_SCENARIOS), own_server, f"{SEED}")
    print(f"{len(ends)} scenarios, in which the server crashed {crashes} times")
    assert crashes > 1


def survivor(target: Target, tmp_path: Path) -> Callable[[int], tuple[Any, ...]]:
    """Return what lives through a scenario of a number and tells how it ended."""

    def survive(number: int) -> tuple[Any, ...]:
        chance = random.Random(f"{SEED}/{number}")
        kind = KINDS[number % len(KINDS)]
        steps = _steps(chance, kind)
        scenario = Run(tmp_path / f"s-{number}", target, f"s-{number}")
        scenario.take(*steps)
        wrong = scenario.wrong(kind)
        assert wrong == [], (number, kind, steps, scenario.outcomes())
        end = (kind, scenario.receipt()["state"], *scenario.end(), scenario.charges)
        _finish(scenario, kind)
        return end

    return survive


@pytest.mark.parametrize("places", STORAGES[:1], indirect=True)
@pytest.mark.parametrize("kind", CANARIES)
def test_the_same_scenarios_find_those_who_think_it_is_easy(
    target: Target, tmp_path: Path, kind: str
) -> None:
    def wrong(number: int) -> list[str]:
        chance = random.Random(f"{SEED}/{number}")
        scenario = Run(tmp_path / f"c-{number}", target, f"{kind}-{number}")
        scenario.take(*_steps(chance, kind))
        return scenario.wrong(kind)

    assert found_wrong(wrong, 100), f"a {kind} run passed"


def _steps(chance: random.Random, kind: str) -> list[Step]:
    retries = chance.random() < 0.4

    def draw() -> RunPlan:
        leave = chance.choice(LEAVES) if chance.random() < 0.15 else None
        return RunPlan(kind, **draw_faults(chance, POINTS, 60), leave=leave, retries=retries)

    freezes = [point for point in POINTS if kind != "queryable" or point not in UNGUARDED]
    last = RunPlan(kind, retries=retries)
    return draw_steps(chance, draw, last, () if kind in CANARIES else freezes)
