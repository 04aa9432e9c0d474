"""Kills a whole turn at every point where a crash leaves a different state, and recovers it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance import turn
from tests.acceptance.children import notes, query, run, running, until
from tests.acceptance.mcp_counter import serve
from tests.acceptance.samples import SEED, Crash, amount, moment_of, sample
from tests.storages import Places, exists

_AT_ONCE = 2 * (os.cpu_count() or 1)
_CHAINS = amount("CRASH_CHAINS", usual=3, full=16)
_CRASHES_A_CHAIN = 3

Recorded = dict[str, tuple[str, str, bytes, str]]


class Scenario:
    """A turn in a folder of its own, and what became of it so far."""

    def __init__(self, folder: Path, url: str, places: Places) -> None:
        folder.mkdir()
        places.use(folder)
        turn.create_shop(folder)
        self._folder = folder
        self._url = url

    def take_turn(self, crash: Crash | None) -> bool:
        """Run a fresh process up to its crash; return whether it came to that."""
        with running(self._folder, turn.take_turn, self._folder, self._url, crash) as child:
            if child.wait() == 0:
                return False
            child.die()
            return True

    def recorded(self) -> Recorded:
        """Return the operations in the journal: kind, handler, input digest and status by key."""
        if not exists(self._folder, "records"):
            return {}
        rows = query(
            self._folder / "runs.db",
            "SELECT step_id || '/' || sequence, kind, handler_id, input_sha256, status"
            " FROM records",
        )
        return {key: row for key, *row in rows}

    def executed(self) -> Counter[str]:
        """Return how often each operation was called."""
        return Counter(line["operation"] for line in notes(self._folder / "executed.log"))

    def effects(self) -> Counter[str]:
        """Return how often each operation did what it does outside of the process."""
        seen = [f"request {line['request']}" for line in notes(self._folder / "model.log")]
        seen += [
            f"{line['effect']} {line['about']}" for line in notes(self._folder / "effects.log")
        ]
        rows = query(self._folder / "shop.db", "SELECT effect || ' ' || about FROM effects")
        return Counter([*seen, *(effect for (effect,) in rows)])

    def end(self) -> tuple[str, str]:
        ((state, output),) = query(self._folder / "runs.db", "SELECT state, output FROM runs")
        return state, json.loads(output)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve MCP for every scenario."""
    announced = tmp_path_factory.mktemp("mcp") / "url"
    with running(announced.parent, serve, announced) as server:
        until(announced.exists, server)
        yield announced.read_text()


@pytest.fixture(scope="module")
def reference(url: str, places: Places, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the journal of a turn that nobody killed."""
    scenario = Scenario(tmp_path_factory.mktemp("turn") / "reference", url, places)
    assert not scenario.take_turn(None)
    assert scenario.end() == ("completed", turn.ANSWER)
    assert scenario.effects() == Counter(turn.OPERATIONS.values())
    return scenario.recorded()


@pytest.fixture(scope="module")
def crashes(url: str, places: Places, tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    """Return every point of a turn."""
    folder = tmp_path_factory.mktemp("points")
    places.use(folder)
    turn.create_shop(folder)
    run(folder, turn.list_points, folder, url, folder / "points")
    passed = (folder / "points").read_text().splitlines()
    return [(point, passed[: index + 1].count(point)) for index, point in enumerate(passed)]


def test_every_write_and_every_call_is_a_point(reference: Recorded, crashes: list[Crash]) -> None:
    points = {point for point, _ in crashes}
    effects = {key for key in turn.OPERATIONS if not key.startswith("model.")}
    of_effects = {"commit.begin receipt.claim", "commit.done receipt.claim"}
    of_effects |= {"effect.send", "effect.sent"}
    assert Counter(point for point, _ in crashes) == {
        point: len(effects) if point in of_effects else 1 for point in points
    }
    assert of_effects < points
    assert set(turn.OPERATIONS) < set(reference)
    for key in reference:
        assert {f"operation.call {key}", f"operation.called {key}"} < points
    writes = {f"{'settle' if key in effects else 'record'} {key}" for key in reference}
    writes |= {"receipt.claim", "register_worker", "start_run", "end_run", "retire_worker"}
    for moment in ("begin", "done"):
        commits = {point for point in points if point.startswith(f"commit.{moment}")}
        migrations = {point for point in commits if point.startswith(f"commit.{moment} migrate")}
        assert commits == {f"commit.{moment} {write}" for write in writes} | migrations
        assert migrations
    assert {
        f"effect.{moment} {item}" for moment in ("before", "after") for item in turn.ITEMS
    } < points
    assert len([point for point in points if point.startswith("model.chunk")]) > 3


def test_a_turn_killed_at_any_point_ends_as_if_it_had_not_been(
    url: str, places: Places, tmp_path: Path, reference: Recorded, crashes: list[Crash]
) -> None:
    chosen = sample(crashes, moment_of)
    kill_and_compare(url, places, tmp_path, reference, chosen)
    print(f"killed at {len(chosen)} of {len(crashes)} points of the turn")


def kill_and_compare(
    url: str, places: Places, tmp_path: Path, reference: Recorded, chosen: Sequence[Crash]
) -> None:
    """Kill a turn at each of these points, and compare it with one that nobody killed."""

    def survive(index: int) -> None:
        scenario = Scenario(tmp_path / f"at-{index}", url, places)
        assert _survive(scenario, [chosen[index]], reference) == 1, chosen[index]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(survive, range(len(chosen))))


def test_recoveries_that_are_killed_themselves_are_recovered(
    url: str, places: Places, tmp_path: Path, reference: Recorded, crashes: list[Crash]
) -> None:
    chosen = random.Random(SEED)
    chains = [
        [
            chosen.choice(crashes),
            *(("", chosen.randint(1, 30)) for _ in range(_CRASHES_A_CHAIN - 1)),
        ]
        for _ in range(_CHAINS)
    ]

    def survive(index: int) -> int:
        scenario = Scenario(tmp_path / f"chain-{index}", url, places)
        return _survive(scenario, chains[index], reference)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        kills = sum(pool.map(survive, range(_CHAINS)))
    print(f"{kills} kills in {_CHAINS} turns")
    assert kills > 2 * _CHAINS


def _survive(scenario: Scenario, crashes: list[Crash], reference: Recorded) -> int:
    """Kill a turn again and again, let it end, and check what it did; return the kills."""
    kills = 0
    settled: list[tuple[Recorded, Counter[str], Counter[str]]] = []
    for crash in [*crashes, None]:
        if not scenario.take_turn(crash):
            break
        kills += 1
        settled.append((scenario.recorded(), scenario.executed(), scenario.effects()))
    assert scenario.end() == ("completed", turn.ANSWER), crashes
    assert scenario.recorded() == reference, crashes
    executed, effects = scenario.executed(), scenario.effects()
    for recorded, executed_before, effects_before in settled:
        for key in recorded:
            assert executed[key] == executed_before[key], (key, crashes)
            if key in turn.OPERATIONS:
                effect = turn.OPERATIONS[key]
                assert effects[effect] == effects_before[effect], (key, crashes)
    assert set(executed) == set(reference)
    assert set(effects) == set(turn.OPERATIONS.values())
    for count in [*executed.values(), *effects.values()]:
        assert 1 <= count <= kills + 1, crashes
    return kills
