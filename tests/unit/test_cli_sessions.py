"""The command line `perdure sessions`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure import App, Context
from perdure.cli import main
from perdure.turn import Turn
from tests.harness import app_on, run
from tests.turning import asked

URL = ("--url", "sqlite:///runs.db")
ERASE = ("sessions", "erase", "room", "--why", "asked to", "--yes", *URL)


def test_sessions_are_listed_and_erased_with_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def listed() -> list[str]:
        assert main(["sessions", "--json", *URL]) == 0
        return [each["session"] for each in json.loads(capsys.readouterr().out)["sessions"]]

    run(answer(app_on(tmp_path)))
    assert listed() == ["room"]
    assert main(["sessions", *URL]) == 0
    assert "room" in capsys.readouterr().out
    assert main([*ERASE, "--json"]) == 0
    (run_id,) = json.loads(capsys.readouterr().out)["run_ids"]
    assert listed() == []
    assert main(["show", run_id, "--json", *URL]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["erased_why"] == "asked to"
    assert main([*ERASE]) == 3  # there is nothing any more
    assert "nothing of a session 'room'" in capsys.readouterr().err


async def answer(app: App) -> None:
    """Let a run answer in a session."""

    @app.turn(version=1)
    async def echo(context: Context, turn: Turn) -> str:
        return await turn.text()

    async with app:
        assert await asked(app, "hello") == "hello"
