"""The demo as a stranger runs it: real processes, a real kill, counts checked from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.children import until
from tests.acceptance.samples import LONG, sample

LIMIT_SECONDS = 60
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
KILLS: list[tuple[str, dict[str, int], str | None]] = [
    ("--kill-at model-stream", {"model request 4": 2}, None),
    ("--kill-at before-tools", {}, None),
    ("--kill-at mcp", {"MCP bank_day": 2}, None),
    ("--kill-at after-tools --support at-least-once", {}, None),
    ("", {"lookup at the shop": 1}, "lookup"),
    ("--support idempotent", {"tool refund_order": 2}, "repeat"),
    ("--support at-least-once", {}, "person"),
]
"""The words of a demo, what happens twice in it, and how the doubt that it leaves ends."""
LEFT = "--support at-least-once --no-settle --keep kept"


def processes_that_name(folder: Path) -> list[str]:
    """Return the command lines of processes with this folder in them, where /proc shows them."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(path.read_text(errors="replace"))
    return [line for line in found if str(folder) in line]


class Perdure:
    """The command line, in processes of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __call__(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder, which is also the one for temporary files."""
        with self.started(*words, folder=folder) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def started(self, *words: str, folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", *words],
            cwd=folder,
            env={**self._environment, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def demo(self, *words: str, folder: Path, code: int = 0) -> dict[str, Any]:
        """Run the demo, check that nothing was found, and return the document that it wrote."""
        done = self("demo", *words, "--json", folder=folder)
        assert (done.returncode, done.stderr) == (code, ""), done.stdout
        told: dict[str, Any] = json.loads(done.stdout)
        assert (told["well"], told["faults"]) == (True, [])
        return told


@pytest.fixture(scope="module")
def perdure(environment: dict[str, str]) -> Perdure:
    return Perdure(environment)


# --- one at a time -------------------------------------------------------------------------------


@LONG
def test_a_pipe_gets_plain_lines_and_the_databases_are_kept(
    perdure: Perdure, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = perdure("demo", "--keep", "kept", folder=tmp_path)
    assert time.monotonic() - began < LIMIT_SECONDS
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


@LONG
def test_a_model_that_cannot_be_had_is_refused(perdure: Perdure, tmp_path: Path) -> None:
    done = perdure("demo", "--model", "nobody:nothing", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("perdure: --model nobody:nothing: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@LONG
def test_an_interrupted_demo_leaves_nothing_behind(perdure: Perdure, tmp_path: Path) -> None:
    with perdure.started("demo", folder=tmp_path) as child:
        assert child.stdout is not None
        announced = (re.match(r"worker 1 \(pid (\d+)\)", line) for line in child.stdout)
        pid = next(int(found[1]) for found in announced if found)
        child.send_signal(signal.SIGINT)
        child.communicate()
    assert child.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []
    until(lambda: not processes_that_name(tmp_path))  # the tools' server ends with its pipe


# --- two at a time -------------------------------------------------------------------------------


class Demo:
    """A demo that runs while other tests do, in a folder of its own."""

    def __init__(self, folder: Path, ended: Future[dict[str, Any]]) -> None:
        self.folder = folder
        self._ended = ended

    def told(self) -> dict[str, Any]:
        return self._ended.result()

    def copied(self, folder: Path) -> list[list[str]]:
        """Copy what was kept; return the words of the commands that were shown, for the copy."""
        commands = self.told()["commands"]
        shutil.copytree(self.folder / "kept", folder / "kept")
        return [
            shlex.split(command.replace(str(self.folder), str(folder)))[1:] for command in commands
        ]


@pytest.fixture(scope="module")
def demos(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, perdure: Perdure
) -> Iterator[dict[str, Demo]]:
    """Start each demo that a test of this run asks for, two at a time: most of one is imports."""
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    every = [spec.params["demo"] for spec in asked if spec and "demo" in spec.params]

    with ThreadPoolExecutor(2) as pool:

        def start(words: str) -> Demo:
            folder = tmp_path_factory.mktemp("demo")
            return Demo(folder, pool.submit(perdure.demo, *words.split(), folder=folder))

        yield {words: start(words) for words in dict.fromkeys(every)}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def demo(request: pytest.FixtureRequest, demos: dict[str, Demo]) -> Demo:
    """Return the demo of these words, which may be under way."""
    return demos[request.param]


def counted(told: dict[str, Any]) -> dict[str, int]:
    return {count["what"]: count["counted"] for count in told["counts"]}


def sole_receipt(told: dict[str, Any]) -> dict[str, Any]:
    (receipt,) = told["receipts"]
    assert (receipt["target"], receipt["support"]) == ("shop", told["support"])
    return receipt


@pytest.mark.parametrize(
    ("demo", "twice", "settled_by"),
    sample(KILLS, lambda kill: "the turn of the script"),
    indirect=["demo"],
)
def test_only_what_the_kill_cut_short_happens_again_and_money_goes_back_once(
    demo: Demo, twice: dict[str, int], settled_by: str | None
) -> None:
    told = demo.told()
    assert counted(told) == {**CALLS, **twice}
    assert told["run"]["state"] == "completed"
    assert told["run"]["result"] == told["answer"]
    steps = [f"{entry['step_id']}/{entry['sequence']}" for entry in told["operations"]]
    assert [step for step in steps if step.startswith("model.")] == MODELS
    first, *waiting, last = told["attempts"]
    assert (first["ending"], last["ending"]) == ("lost", "completed")
    # Where nobody can tell, the run waits until a person has looked at the shop.
    parked = ["needs_attention"] if settled_by == "person" else []
    assert [attempt["ending"] for attempt in waiting] == parked
    assert (told["killed_pid"], told["killed_signal"]) == (first["pid"], signal.SIGKILL)
    assert last["pid"] != first["pid"]
    assert last["replayed"] == told["replayed"] == first["recorded"] > 0
    assert (told["settled_by"], told["commands"]) == (settled_by, [])
    receipt = sole_receipt(told)
    assert (receipt["state"], receipt["decided_by"]) == ("completed", "demo" if parked else None)
    assert receipt["attempt"] == (2 if settled_by == "repeat" else 1)
    assert list(demo.folder.iterdir()) == []


@pytest.mark.parametrize("demo", [LEFT], indirect=True)
def test_a_reader_settles_it_by_the_commands_that_are_shown(
    perdure: Perdure, demo: Demo, tmp_path: Path
) -> None:
    left = demo.told()
    assert (left["run"]["state"], left["answer"]) == ("needs_attention", None)
    assert (counted(left)["refunds paid"], sole_receipt(left)["state"]) == (1, "ambiguous")
    show, settle, resume = demo.copied(tmp_path)
    early = perdure.demo(*resume[1:], folder=tmp_path, code=5)
    assert [shlex.split(command)[1:] for command in early["commands"]] == [show, settle, resume]
    shown = perdure(*show, folder=tmp_path)
    assert "state      ambiguous" in shown.stdout
    assert perdure(*settle, "--by", "ada", folder=tmp_path).returncode == 0
    told = perdure.demo(*resume[1:], folder=tmp_path)
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


@LONG
@pytest.mark.parametrize("demo", [LEFT], indirect=True)
def test_a_wrong_decision_is_found_at_the_shop(
    perdure: Perdure, demo: Demo, tmp_path: Path
) -> None:
    _, settle, resume = demo.copied(tmp_path)
    landed = settle.index("--landed")
    settle[landed : landed + 2] = ["--did-not-land"]
    assert perdure(*settle, "--by", "ada", folder=tmp_path).returncode == 0
    done = perdure(*resume, "--json", folder=tmp_path)
    assert done.returncode == 1
    assert "refunds paid: counted 2, and 1 would be right" in json.loads(done.stdout)["faults"]


@pytest.mark.parametrize(
    ("demo", "killed", "settled_by"),
    sample(
        [
            ("--model test --kill-at none", False, None),
            ("--model test --support at-least-once", True, "person"),
        ],
        lambda kill: "another model",
    ),
    indirect=["demo"],
)
def test_another_model_of_the_sdk_goes_through_the_same_turn(
    demo: Demo, killed: bool, settled_by: str | None
) -> None:
    told = demo.told()
    assert (told["model"], told["settled_by"]) == ("test", settled_by)
    assert counted(told)["refunds paid"] == 1
    if not killed:
        assert (told["killed_pid"], told["replayed"], len(told["attempts"])) == (None, 0, 1)
        assert set(counted(told).values()) == {1}


@LONG
def test_of_a_chat_that_is_kept_it_is_said_where_it_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = ["demo", "--chat", "--no-open", "--keep", str(kept)]
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", *words],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    try:
        said = [process.stdout.readline() for _ in range(2)]
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.communicate(timeout=LIMIT_SECONDS)
    assert said[1] == f"its runs are in sqlite:///{kept}/chat.db and stay there\n"
    assert (kept / "chat.db").exists()
