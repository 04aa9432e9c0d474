"""What holds for runs whoever dies, where Temporal decides which worker executes them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.acceptance import (
    test_crash_points,
    test_run_bank,
    test_turn_kills,
    test_two_workers,
    test_waiting,
)
from tests.acceptance.dispatched import places, temporal
from tests.acceptance.run_payer import DECLARED, RunPlan
from tests.acceptance.samples import LONG, SEED, Crash, amount, moment_of
from tests.acceptance.scenarios import Target, kind_of, survive_all
from tests.acceptance.test_crash_points import Recorded, crashes, reference, url
from tests.acceptance.test_run_bank import Run
from tests.storages import Places

__all__ = ["crashes", "places", "reference", "temporal", "url"]

pytestmark = LONG

T = TypeVar("T")

_POINTS = amount("TEMPORAL_POINTS", usual=4, full=12)
_FEWER_POINTS = 2 * _POINTS // 3
_SCENARIOS = amount("TEMPORAL_SCENARIOS", usual=2, full=6)
_ROUNDS = amount("TEMPORAL_ROUNDS", usual=3, full=4)
_KILLS = amount("TEMPORAL_KILLS", usual=3, full=5)


def test_a_turn_killed_at_a_point_ends_as_if_it_had_not_been(
    url: str, places: Places, tmp_path: Path, reference: Recorded, crashes: list[Crash]
) -> None:
    test_crash_points.kill_and_compare(
        url, places, tmp_path, reference, _some(crashes, moment_of, _POINTS)
    )


def test_a_run_that_waits_in_every_way_is_killed_at_a_point(places: Places, tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    passed = test_waiting.points_of(test_waiting.Scenario(folder, places).folder)
    chosen = _some(
        [crash for crash in passed if "migrate" not in crash[0]], moment_of, _FEWER_POINTS
    )
    test_waiting.kill_and_finish(places, tmp_path, chosen)


def test_of_people_who_answer_at_once_one_wins(folder: Path) -> None:
    test_waiting.one_wins(folder, _ROUNDS)


def test_everybody_sees_what_was_returned_whoever_is_killed(folder: Path) -> None:
    test_turn_kills.watch_kills(folder, _KILLS, apart=5.0)


def test_a_run_killed_at_a_point_charges_at_most_once(target: Target, tmp_path: Path) -> None:
    kinds = ("idempotent", "queryable", "ask")
    passed = [
        (kind, crash)
        for kind in kinds
        for crash in Run(tmp_path / kind, target, f"all-of-{kind}").points(RunPlan(kind))
    ]
    test_run_bank.kill_and_finish(target, tmp_path, _some(passed, kind_of, _FEWER_POINTS))


def test_whatever_happens_nobody_is_charged_twice(target: Target, tmp_path: Path) -> None:
    survive_all(test_run_bank.survivor(target, tmp_path), range(_SCENARIOS))


def test_a_worker_that_froze_past_its_lease_does_not_charge_again(
    target: Target, tmp_path: Path
) -> None:
    points = ("commit.done receipt.claim", "effect.send", "operation.called call/1", "effect.sent")
    cases = [*zip(DECLARED, points, strict=False)]
    test_run_bank.freeze_and_finish(target, tmp_path, cases)


def test_a_worker_frozen_past_its_heartbeat_writes_nothing_when_it_thaws(
    places: Places, tmp_path: Path
) -> None:
    def survive(number: int) -> None:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        places.use(folder)
        test_two_workers.freeze_and_thaw(folder, blocking=bool(number))

    survive_all(survive, range(2))


def _some(cases: Sequence[T], kind: Callable[[T], Hashable], most: int) -> list[T]:
    """Return a few cases, no two of which are of one kind."""
    kinds: dict[Hashable, list[T]] = defaultdict(list)
    for case in cases:
        kinds[kind(case)].append(case)
    chance = random.Random(SEED)
    names = chance.sample([*kinds], min(most, len(kinds)))
    return [chance.choice(kinds[name]) for name in names]
