from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, WorkerOptions
from perdure.cli import main
from tests.harness import Pause, app_on, finish, interrupt, paused_app, run

PROGRAM = """
import asyncio, os, signal
from perdure import App, PerdureError, RunParked

app = App("sqlite:///runs.db")

@app.run(version=1)
async def double(context, number):
    return 2 * number

@app.run(version=2)
async def broken(context):
    raise ValueError("no\\x1b[31m luck\\ntoday")

@app.run(version=1)
async def stuck(context):
    raise RunParked(PerdureError("the price changed"))

@app.run(version=1)
async def ending(context):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """Run command lines in a folder that holds `shop.py`; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PERDURE_URL", raising=False)
    (tmp_path / "shop.py").write_text(PROGRAM)
    sys.modules.pop("shop", None)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    sys.modules.pop("shop", None)


def document(done: tuple[int, str, str], code: int = 0) -> Any:
    """Return the one document that a command wrote, and check that it is all it wrote."""
    assert (done[0], done[2]) == (code, "")
    assert done[1].count("\n") == 1
    return json.loads(done[1])


def work_off(*states: str) -> None:
    """Execute what waits, until the runs are in these states, oldest first."""
    app: App = sys.modules["shop"].app
    app.worker = WorkerOptions(poll_seconds=0.002)

    async def wait() -> None:
        async with app:
            while [str(row.state) for row in await _oldest_first(app)] != [*states]:
                await asyncio.sleep(0)

    run(wait())


async def _oldest_first(app: App) -> list[Any]:
    return [*reversed(await app.store.list_runs(state=None, limit=100))]


def test_a_run_is_started_for_a_worker_and_starting_it_again_changes_nothing(cli: Cli) -> None:
    first = cli("start", "shop:app", "double", "21", "--id", "one")
    assert first == (0, "run one is pending\n", "")
    row = document(cli("start", "shop:app", "double", "21", "--id", "one", "--json"))
    assert (row["run_id"], row["state"], row["attempts"]) == ("one", "pending", 0)
    code, out, err = cli("start", "shop:app", "double", "22", "--id", "one")
    assert (code, out) == (2, "")
    assert "exists with another input" in err


def test_waiting_prints_the_result_alone(cli: Cli) -> None:
    cli("start", "shop:app", "double", "21", "--id", "one")
    work_off("completed")
    assert cli("start", "shop:app", "double", "21", "--id", "one", "--wait") == (0, "42\n", "")


@pytest.mark.parametrize(
    ("function", "state", "code", "word"),
    [
        ("broken", "failed", 1, "failed with ValueError: no\\x1b[31m luck today"),
        ("stuck", "needs_attention", 5, "needs attention: the price changed"),
    ],
)
def test_waiting_tells_by_its_exit_code_how_a_run_ended(
    cli: Cli, function: str, state: str, code: int, word: str
) -> None:
    cli("start", "shop:app", function, "--id", "one")
    work_off(state)
    ended, out, err = cli("start", "shop:app", function, "--id", "one", "--wait")
    assert (ended, out) == (code, "")
    assert word in err
    assert "perdure show one" in err
    assert "`perdure resume one --app shop:app`" in err
    assert (
        "\n  goes on by `perdure resume one --app shop:app`"
        in cli("show", "one", "--app", "shop:app")[1]
    )
    row = document(cli("start", "shop:app", function, "--id", "one", "--wait", "--json"), code)
    assert row["state"] == state
    assert row["problem"]["message"]


def test_the_input_may_come_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": [1]}')))
    cli("start", "shop:app", "double", "-", "--id", "one")
    shown = document(cli("show", "one", "--app", "shop:app", "--json"))
    assert shown["run"]["input"] == {"a": [1]}


def test_runs_are_listed_newest_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_URL", "sqlite:///runs.db")
    for run_id, *words in (("a", "double", "3"), ("b", "broken"), ("c", "double", "3")):
        cli("start", "shop:app", *words, "--id", run_id)
    work_off("completed", "failed", "completed")

    def listed(*words: str) -> list[str]:
        return [row["run_id"] for row in document(cli("runs", "--json", *words))["runs"]]

    assert listed() == ["c", "b", "a"]
    assert listed("--limit", "1") == ["c"]
    assert listed("--state", "completed") == ["c", "a"]
    code, out, _ = cli("runs")
    header, *lines = out.splitlines()
    assert (code, header.split()[0], len(lines)) == (0, "run", 3)
    assert "no\\x1b[31m luck today" in lines[1]
    assert cli("runs", "--state", "cancelled") == (0, "no runs are cancelled\n", "")


def test_the_timeline_tells_who_recorded_an_operation(cli: Cli, tmp_path: Path) -> None:
    pause = Pause()

    async def price(order: str) -> int:
        return len(order)

    async def order(context: Context, name: str) -> int:
        first = await context.call(price, name)
        await pause()
        return first + await context.call(price, "more")

    def app() -> App:
        opened = app_on(tmp_path)
        opened.run(version=1)(order)
        return opened

    async def whole() -> None:
        await interrupt(app(), pause, order, "lamp")
        pause.open = True
        async with (again := app()):
            assert await again.handle("run-1").result() == 8

    run(whole())
    shown = document(cli("show", "run-1", "--url", "sqlite:///runs.db", "--json"))
    assert shown["run"]["result"] == 8
    attempts = [(a["attempt"], a["ending"], a["recorded"]) for a in shown["attempts"]]
    assert attempts == [(1, "released", 1), (2, "completed", 1)]
    assert [attempt["replayed"] for attempt in shown["attempts"]] == [None, 1]
    assert [attempt["worker_alive"] for attempt in shown["attempts"]] == [None, None]
    operations = [
        (entry["key"], entry["name"], entry["recorded_in"], entry["problem"])
        for entry in shown["operations"]
    ]
    name = "price"
    assert operations == [("run-1/call/1", name, 1, None), ("run-1/call/2", name, 2, None)]
    assert all(len(entry["input_sha256"]) == 64 for entry in shown["operations"])

    code, out, _ = cli("show", "run-1", "--url", "sqlite:///runs.db")
    assert code == 0
    assert "run run-1  completed" in out
    assert shown["operations"][0]["input_sha256"][:12] in out
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == []


def test_a_run_is_cancelled_once(cli: Cli) -> None:
    cli("start", "shop:app", "double", "1", "--id", "one")
    where = ("--app", "shop:app")
    assert cli("cancel", "one", *where) == (0, "run one is cancelled\n", "")
    again = (1, "run one is cancelled already; nothing was done\n", "")
    assert cli("cancel", "one", *where) == again
    assert document(cli("cancel", "one", *where, "--json"), 1)["state"] == "cancelled"
    assert cli("start", "shop:app", "double", "1", "--id", "one", "--wait")[0] == 5
    code, out, _ = cli("resume", "one", *where)
    assert (code, out) == (1, "run one is cancelled and never goes on; nothing was done\n")


@pytest.mark.parametrize(
    ("function", "state"), [("stuck", "needs_attention"), ("broken", "failed")]
)
def test_a_parked_or_failed_run_is_resumed_once(cli: Cli, function: str, state: str) -> None:
    cli("start", "shop:app", function, "--id", "one")
    work_off(state)
    row = document(cli("resume", "one", "--app", "shop:app", "--json"))
    assert (row["state"], row["problem"]) == ("pending", None)
    code, out, _ = cli("resume", "one", "--app", "shop:app")
    assert (code, out) == (1, "run one waits for a worker already; nothing was done\n")


def test_a_run_that_runs_or_is_completed_is_not_resumed(cli: Cli, tmp_path: Path) -> None:
    pause = Pause()

    async def meanwhile() -> tuple[int, str, str]:
        async with (app := paused_app(tmp_path, pause)):
            await app.start("work", 1, run_id="one")
            await pause.reached.wait()
            told = await asyncio.to_thread(cli, "resume", "one", "--url", "sqlite:///runs.db")
            pause.open = True
            return told

    assert run(meanwhile()) == (1, "run one is running already; nothing was done\n", "")
    run(finish(paused_app(tmp_path, pause), "one"))
    code, out, _ = cli("resume", "one", "--url", "sqlite:///runs.db")
    assert (code, out) == (1, "run one is completed and never goes on; nothing was done\n")


def test_a_finished_run_is_not_cancelled(cli: Cli) -> None:
    cli("start", "shop:app", "double", "1", "--id", "one")
    work_off("completed")
    code, out, _ = cli("cancel", "one", "--app", "shop:app")
    assert (code, out) == (1, "run one is completed already; nothing was done\n")


def test_a_worker_stops_at_a_signal_and_gives_its_runs_back(cli: Cli) -> None:
    cli("start", "shop:app", "ending", "--id", "one")
    before = signal.getsignal(signal.SIGTERM)
    code, out, _ = cli("worker", "shop:app", "--name", "w-7", "--concurrency", "3", "--json")
    serving, stopped = map(json.loads, out.splitlines())
    assert code == 0
    assert (serving["event"], serving["name"]) == ("serving", "w-7")
    assert {"name": "broken", "version": 2} in serving["functions"]
    assert (stopped["event"], stopped["counts"]["runs_claimed"]) == ("stopped", 1)
    assert stopped["counts"] == {
        "runs_claimed": 1,
        "operations_executed": 0,
        "operations_replayed": 0,
    }
    assert signal.getsignal(signal.SIGTERM) == before
    shown = document(cli("show", "one", "--app", "shop:app", "--json"))
    assert shown["run"]["state"] == "pending"
    assert [(a["worker"], a["ending"]) for a in shown["attempts"]] == [("w-7", "released")]
