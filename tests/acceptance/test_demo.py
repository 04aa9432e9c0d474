"""The demo as a stranger runs it: real processes, a real kill, counts checked from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 20
CALLS = {
    "model request 1": 1,
    "model request 2": 1,
    "model request 3": 1,
    "model request 4": 1,
    "tool look_up_order": 1,
    "tool track_parcel": 1,
    "tool refund_order": 1,
    "MCP bank_day": 1,
    "refunds paid": 1,
}
MODELS = ["model.stream/1", "model.stream/2", "model.stream/3", "model.stream/4"]


def perdure(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perdure", *words],
        check=False,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def document(*words: str, folder: Path, code: int = 0) -> dict[str, Any]:
    """Run the demo, check that nothing was found, and return the document that it wrote."""
    done = perdure("demo", *words, "--json", folder=folder)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["well"], told["faults"]) == (True, [])
    assert told["seconds"] < LIMIT_SECONDS
    return told


def counted(told: dict[str, Any]) -> dict[str, int]:
    return {count["what"]: count["counted"] for count in told["counts"]}


def sole_receipt(told: dict[str, Any]) -> dict[str, Any]:
    (receipt,) = told["receipts"]
    assert (receipt["target"], receipt["support"]) == ("shop", told["support"])
    return receipt


@pytest.mark.parametrize(
    ("words", "twice", "settled_by"),
    [
        ("--kill-at model-stream", {"model request 4": 2}, None),
        ("--kill-at before-tools", {}, None),
        ("", {"lookup at the shop": 1}, "lookup"),
        ("--support idempotent", {"tool refund_order": 2}, "repeat"),
        ("--kill-at mcp", {"MCP bank_day": 2}, None),
        ("--kill-at after-tools --support at-least-once", {}, None),
    ],
)
def test_only_what_the_kill_cut_short_happens_again_and_money_goes_back_once(
    tmp_path: Path, words: str, twice: dict[str, int], settled_by: str | None
) -> None:
    told = document(*words.split(), folder=tmp_path)
    assert counted(told) == {**CALLS, **twice}
    assert told["run"]["state"] == "completed"
    assert told["run"]["result"] == told["answer"]
    steps = [f"{entry['step_id']}/{entry['sequence']}" for entry in told["operations"]]
    assert [step for step in steps if step.startswith("model.")] == MODELS
    first, second = told["attempts"]
    assert (first["ending"], second["ending"]) == ("lost", "completed")
    assert (told["killed_pid"], told["killed_signal"]) == (first["pid"], signal.SIGKILL)
    assert second["pid"] != first["pid"]
    assert second["replayed"] == told["replayed"] == first["recorded"] > 0
    assert (told["settled_by"], told["commands"]) == (settled_by, [])
    assert sole_receipt(told)["state"] == "completed"
    assert sole_receipt(told)["attempt"] == (2 if settled_by == "repeat" else 1)
    assert list(tmp_path.iterdir()) == []


def test_where_nobody_can_tell_the_run_waits_until_a_person_has_looked(tmp_path: Path) -> None:
    told = document("--support", "at-least-once", folder=tmp_path)
    assert counted(told) == CALLS
    assert (told["run"]["state"], told["settled_by"]) == ("completed", "person")
    assert [attempt["ending"] for attempt in told["attempts"]] == [
        "lost",
        "needs_attention",
        "completed",
    ]
    receipt = sole_receipt(told)
    assert (receipt["attempt"], receipt["decided_by"]) == (1, "demo")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_settles_it_by_the_commands_that_are_shown(tmp_path: Path) -> None:
    asked = "--support at-least-once --no-settle --keep kept"
    left = document(*asked.split(), folder=tmp_path)
    assert (left["run"]["state"], left["answer"]) == ("needs_attention", None)
    assert (counted(left)["refunds paid"], sole_receipt(left)["state"]) == (1, "ambiguous")
    show, settle, resume = (shlex.split(command)[1:] for command in left["commands"])
    early = document(*resume[1:], folder=tmp_path, code=5)
    assert early["commands"] == left["commands"]
    shown = perdure(*show, folder=tmp_path)
    assert "state      ambiguous" in shown.stdout
    assert perdure(*settle, "--by", "ada", folder=tmp_path).returncode == 0
    told = document(*resume[1:], folder=tmp_path)
    assert counted(told) == CALLS
    assert (told["run"]["state"], told["settled_by"], told["commands"]) == (
        "completed",
        "person",
        [],
    )
    assert sole_receipt(told)["decided_by"] == "ada"
    assert len({attempt["pid"] for attempt in told["attempts"]}) == 3
    again = perdure(*resume, folder=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "does not wait for anybody" in again.stderr


def test_a_wrong_decision_is_found_at_the_shop(tmp_path: Path) -> None:
    asked = "--support at-least-once --no-settle --keep kept"
    left = document(*asked.split(), folder=tmp_path)
    _, settle, resume = (shlex.split(command)[1:] for command in left["commands"])
    landed = settle.index("--landed")
    settle[landed : landed + 2] = ["--did-not-land"]
    assert perdure(*settle, "--by", "ada", folder=tmp_path).returncode == 0
    done = perdure(*resume, "--json", folder=tmp_path)
    assert done.returncode == 1
    assert "refunds paid: counted 2, and 1 would be right" in json.loads(done.stdout)["faults"]


def test_a_pipe_gets_plain_lines_and_the_databases_are_kept(tmp_path: Path) -> None:
    done = perdure("demo", "--keep", "kept", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", done.stdout) is None
    told = done.stdout.split("killed by signal 9")
    assert "the shop pays 4900 cents back; the receipt op-" in told[0]
    assert re.search(r"finds the receipt op-\w+ in flight, and its worker gone", told[1])
    assert re.search(r"asks the shop for op-\w+: it landed, 4900 cents", told[1])
    assert "All counts are right." in told[1]
    assert {"runs.db", "shop.db"} <= {path.name for path in (tmp_path / "kept").iterdir()}
    shown = perdure(
        "show", "refund-A-1042", "--url", "sqlite:///kept/runs.db", "--json", folder=tmp_path
    )
    assert json.loads(shown.stdout)["run"]["state"] == "completed"


def test_another_model_of_the_sdk_goes_through_the_same_turn(tmp_path: Path) -> None:
    told = document("--model", "test", "--kill-at", "none", folder=tmp_path)
    assert (told["model"], told["killed_pid"], told["replayed"]) == ("test", None, 0)
    assert len(told["attempts"]) == 1
    assert set(counted(told).values()) == {1}


def test_another_model_of_the_sdk_may_be_killed_in_the_refund(tmp_path: Path) -> None:
    told = document("--model", "test", "--support", "at-least-once", folder=tmp_path)
    assert (told["settled_by"], counted(told)["refunds paid"]) == ("person", 1)


def test_a_model_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    done = perdure("demo", "--model", "nobody:nothing", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("perdure: --model nobody:nothing: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        announced = (re.match(r"worker 1 \(pid (\d+)\)", line) for line in child.stdout)
        pid = next(int(found[1]) for found in announced if found)
        child.send_signal(signal.SIGINT)
        child.stdout.read()
    assert child.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []
