"""Runs that wait, whoever dies meanwhile: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance import waiting_runs, waiting_turn
from tests.acceptance.children import Child, notes, query, run, running, until
from tests.acceptance.samples import Crash, amount, moment_of, sample
from tests.storages import Places, exists

_AT_ONCE = 2 * (os.cpu_count() or 1)
_ROUNDS = amount("ANSWER_ROUNDS", usual=10, full=200)
_PEOPLE = 8


# --- three days ----------------------------------------------------------------------------------


def test_a_turn_that_waits_for_three_days_outlives_restarts_and_deployments(
    tmp_path: Path,
) -> None:
    """Two of three parallel calls need approval; four processes are killed and code is replaced."""
    database = tmp_path / "runs.db"

    def state() -> str:
        return query(database, "SELECT state FROM runs")[0][0]

    def serve(number: int, days: float, deployment: int) -> None:
        """Serve the turn in a process until it waits, and kill that."""

        def waits() -> bool:
            served = len(notes(tmp_path / "served.log")) == number
            return served and state() == "suspended"

        with running(tmp_path, waiting_turn.serve, tmp_path, days, deployment) as child:
            until(waits, child)
            child.kill()

    serve(1, 0, 1)
    ((owners,),) = query(database, "SELECT count(*) FROM runs WHERE holder IS NOT NULL")
    assert owners == 0
    assert effects_in(tmp_path) == {"look 2": 1}
    serve(2, 1, 2)
    run(tmp_path, waiting_turn.approve, tmp_path, 1.5, "3")
    until(lambda: state() == "pending")
    # Partial answers wait for the rest.
    serve(3, 1.5, 2)
    assert effects_in(tmp_path) == {"look 2": 1}
    serve(4, 2.5, 3)
    run(tmp_path, waiting_turn.approve, tmp_path, 3, "1")
    run(tmp_path, waiting_turn.finish, tmp_path, 3, 3)
    (noted,) = notes(tmp_path / "result.log")
    assert noted["result"] == ["looked 2", "refunded 1", "refunded 3"]
    assert effects_in(tmp_path) == {"look 2": 1, "refund 1": 1, "refund 3": 1}
    assert len(notes(tmp_path / "model.log")) == 2
    endings = query(database, "SELECT ending, count(*) FROM attempts GROUP BY ending")
    assert dict(endings) == {"suspended": 2, "completed": 1}


def effects_in(folder: Path) -> Counter[str]:
    """Return how often each effect was applied."""
    return Counter(line["effect"] for line in notes(folder / "effects.log"))


# --- one answer ----------------------------------------------------------------------------------


def test_of_eight_processes_that_answer_at_once_one_wins(folder: Path) -> None:
    """T29."""
    one_wins(folder, _ROUNDS)


def one_wins(folder: Path, rounds: int) -> None:
    """Have as many runs ask, and as many people answer each of them at the same time."""
    run(folder, waiting_runs.ask_all, folder, rounds)
    together = multiprocessing.get_context("forkserver").Barrier(_PEOPLE)
    with ExitStack() as stack:
        people = [
            stack.enter_context(
                running(folder, waiting_runs.answer_all, folder, rounds, person, together)
            )
            for person in range(_PEOPLE)
        ]
        wait_for_all(people)
    run(folder, waiting_runs.finish_all, folder, rounds)
    answers = notes(folder / "answers.log")
    assert len(answers) == _PEOPLE * rounds
    winners = {line["run"]: line["winner"] for line in answers if line["won"]}
    assert len(winners) == sum(line["won"] for line in answers) == rounds
    assert all(line["winner"] == winners[line["run"]] for line in answers)
    assert all(line["said"] == f"person {line['winner']}" for line in answers)
    results = {line["run"]: line["result"] for line in notes(folder / "results.log")}
    assert results == {run_id: f"person {winner}" for run_id, winner in winners.items()}
    assert len(notes(folder / "effects.log")) == rounds


def wait_for_all(children: list[Child]) -> None:
    """Wait for the good end of each of these, however long that takes them."""
    for child in children:
        until(lambda child=child: not child.alive)
        child.succeed()


# --- killed anywhere -----------------------------------------------------------------------------


class Scenario:
    """A run that waits in every way, in a folder of its own, and what became of it so far."""

    def __init__(self, folder: Path, places: Places) -> None:
        folder.mkdir()
        places.use(folder)
        self.folder = folder

    def live(self, crash: Crash | None) -> bool:
        """Run a fresh process up to its crash; return whether it came to that."""
        with running(self.folder, waiting_runs.live, self.folder, crash) as child:
            if child.wait() == 0:
                return False
            child.die()
            return True

    def check(self) -> None:
        """Check that the run ended as if nobody had been killed."""
        database = self.folder / "runs.db"
        runs = dict(query(database, "SELECT run_id, state FROM runs"))
        child = f"{waiting_runs.RUN_ID}.child.1"
        assert runs == {waiting_runs.RUN_ID: "completed", child: "completed"}
        ((output,),) = query(
            database, "SELECT output FROM runs WHERE run_id = ?", waiting_runs.RUN_ID
        )
        assert json.loads(output) == waiting_runs.RESULT
        steps = query(database, "SELECT step_id, sequence FROM records")
        assert Counter(steps) == Counter(
            [(step, 1) for step in ("sleep", "wait", "child", "approval", "child.end", "call")]
            + [(step, 1) for step in ("sleep", "call")]
        )
        acted = {(line["what"], line["key"]) for line in notes(self.folder / "effects.log")}
        assert Counter(what for what, _ in acted) == {"child": 1, "parent": 1}
        messages = query(database, "SELECT count(*), count(taken_at) FROM messages")
        assert messages == [(3, 3)]
        assert query(database, "SELECT count(*), count(decision) FROM approvals") == [(1, 1)]
        assert query(database, "SELECT count(*) FROM timers") == [(0,)]


def points_of(folder: Path) -> list[Crash]:
    """Return every point that the run passes."""
    run(folder, waiting_runs.list_points, folder, folder / "points")
    passed = (folder / "points").read_text().splitlines()
    return [(point, passed[: index + 1].count(point)) for index, point in enumerate(passed)]


@pytest.fixture(scope="module")
def crashes(places: Places, tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    """Return every point of a run that nobody kills."""
    scenario = Scenario(tmp_path_factory.mktemp("points") / "reference", places)
    found = points_of(scenario.folder)
    scenario.check()
    return found


def test_every_write_of_a_run_that_waits_is_a_point(crashes: list[Crash]) -> None:
    moments = {moment_of(crash) for crash in crashes}
    for write in (
        "start_run",
        "begin_timer",
        "begin_approval",
        "park_run",
        "claim_runs",
        "send_message",
        "take_message",
        "answer_approval",
        "end_run",
    ):
        assert {f"commit.begin {write}", f"commit.done {write}"} <= moments, write


def test_a_run_that_waits_is_killed_at_any_point(
    places: Places, tmp_path: Path, crashes: list[Crash]
) -> None:
    chosen = [crash for crash in sample(crashes, moment_of) if "migrate" not in crash[0]]
    kill_and_finish(places, tmp_path, chosen)


def kill_and_finish(places: Places, tmp_path: Path, chosen: Sequence[Crash]) -> None:
    """Kill a run at each of these points, and let it end in another process."""

    def survive(index: int) -> bool:
        scenario = Scenario(tmp_path / f"at-{index}", places)
        died = scenario.live(chosen[index])
        if died:
            assert not scenario.live(None), chosen[index]
        assert exists(scenario.folder, "runs")
        scenario.check()
        return died

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        died = list(pool.map(survive, range(len(chosen))))
    # What is passed depends a little on what comes first.
    assert sum(died) >= 0.5 * len(chosen)
