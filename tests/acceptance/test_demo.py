"""The demo as a stranger runs it: real processes, a real kill, counts checked from outside."""

from __future__ import annotations

import json
import os
import re
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


@pytest.mark.parametrize(
    ("point", "twice"),
    [
        ("model-stream", {"model request 4": 2}),
        ("before-tools", {}),
        ("in-tool", {"tool refund_order": 2, "refunds paid": 2}),
        ("mcp", {"MCP bank_day": 2}),
        ("after-tools", {}),
    ],
)
def test_only_what_the_kill_cut_short_happens_again(
    tmp_path: Path, point: str, twice: dict[str, int]
) -> None:
    done = perdure("demo", "--kill-at", point, "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["well"], told["faults"]) == (True, [])
    assert {count["what"]: count["counted"] for count in told["counts"]} == {**CALLS, **twice}
    assert told["seconds"] < LIMIT_SECONDS
    assert told["run"]["state"] == "completed"
    assert told["run"]["result"] == told["answer"]
    steps = [f"{entry['step_id']}/{entry['sequence']}" for entry in told["operations"]]
    assert [step for step in steps if step.startswith("model.")] == MODELS
    first, second = told["attempts"]
    assert (first["ending"], second["ending"]) == ("lost", "completed")
    assert (told["killed_pid"], told["killed_signal"]) == (first["pid"], signal.SIGKILL)
    assert second["pid"] != first["pid"]
    assert second["replayed"] == told["replayed"] == first["recorded"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_gets_plain_lines_and_the_databases_are_kept(tmp_path: Path) -> None:
    done = perdure("demo", "--keep", "kept", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", done.stdout) is None
    assert "killed by signal 9" in done.stdout
    assert "All counts are right." in done.stdout
    assert {"runs.db", "shop.db"} <= {path.name for path in (tmp_path / "kept").iterdir()}
    shown = perdure(
        "show", "refund-A-1042", "--url", "sqlite:///kept/runs.db", "--json", folder=tmp_path
    )
    assert json.loads(shown.stdout)["run"]["state"] == "completed"


def test_another_model_of_the_sdk_goes_through_the_same_turn(tmp_path: Path) -> None:
    done = perdure("demo", "--model", "test", "--kill-at", "none", "--json", folder=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["faults"], told["model"]) == (0, [], "test")
    assert (told["killed_pid"], told["replayed"], len(told["attempts"])) == (None, 0, 1)
    assert {count["counted"] for count in told["counts"]} == {1}


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
