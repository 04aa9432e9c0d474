from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import App, Context, RunFailed
from perdure.cli import main
from tests.harness import run

URL = ("--url", "sqlite:///runs.db")
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in a folder with runs: a and b failed, c waits, and d is completed."""
    monkeypatch.chdir(tmp_path)
    app = App(URL[1])

    @app.run(version=1)
    async def half(context: Context, number: int) -> float:
        if number % 2:
            raise SystemExit(number)
        return number / 2

    async def whole() -> None:
        async with app:
            for run_id, number in (("a", 1), ("b", 3), ("d", 4)):
                handle = await app.start(half, number, run_id=run_id)
                if number % 2:
                    with pytest.raises(RunFailed):
                        await handle.result()
                else:
                    await handle.result()
        async with app.connect():
            await app.start(half, 6, run_id="c")

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words, *URL])
        return code, *capsys.readouterr()

    run(whole())
    return call


def test_several_runs_are_resumed_and_what_could_not_be_is_said(typed: Typed) -> None:
    code, out, err = typed("resume", "a", "none", "d", "b", "a")
    assert (code, out.splitlines()) == (
        3,
        [
            "run a is pending and goes on when a worker serves it",
            "run d is completed and never goes on; nothing was done",
            "run b is pending and goes on when a worker serves it",
        ],
    )
    missing, left = err.splitlines()
    assert missing.startswith("perdure: there is no run 'none'")
    assert left == "2 of 4 were left as they were: none, d"


def test_several_runs_are_cancelled(typed: Typed) -> None:
    assert typed("resume", "a", "b")[0] == 0
    cancelled = "run a is cancelled\nrun b is cancelled\nrun c is cancelled\n"
    assert typed("cancel", "a", "b", "c") == (0, cancelled, "")
    assert typed("cancel", "d", "a")[0] == 1


def test_several_runs_are_one_document(typed: Typed) -> None:
    code, out, err = typed("resume", "a", "none", "--json")
    known, missing = json.loads(out)["runs"]
    assert (code, err, out.count("\n")) == (3, "", 1)
    assert (known["run_id"], known["state"], missing["run_id"]) == ("a", "pending", "none")
    assert (missing["error"]["code"], missing["error"]["exit_code"]) == ("UnknownRun", 3)
    assert typed("cancel", "none", "--json")[1].startswith('{"error":')


def test_a_list_names_the_type_of_a_problem_as_show_does(typed: Typed) -> None:
    shown = typed("show", "b")[1]
    assert "\n  problem    SystemExit: 3\n" in shown
    listed = {line.split()[0]: line for line in typed("runs")[1].splitlines()}
    assert listed["b"].endswith("  SystemExit: 3")


def test_an_input_that_is_at_fault_takes_another_id(typed: Typed) -> None:
    shown = typed("show", "b")[1]
    assert "once its cause is mended; where that is its input, which stays as it is, start" in shown
