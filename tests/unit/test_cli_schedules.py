"""The command line `perdure schedules`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import main
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, run
from tests.unit.test_schedules import beating, counted

PROGRAM = """
from perdure import App

app = App("sqlite:///runs.db")

@app.run(version=1)
async def beat(context): ...

app.schedule(beat, every_seconds=10)
"""
URL = ("--url", "sqlite:///runs.db")
BEAT = {
    "name": "beat",
    "function": "beat",
    "rule": "every 10 s",
    "counted_to": "2023-11-14T22:13:20Z",
    "paused": False,
    "next_at": None,
}


def test_schedules_are_listed_paused_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beats.py").write_text(PROGRAM)

    def told(*words: str, code: int = 0) -> str:
        assert main(["schedules", *words]) == code
        out, err = capsys.readouterr()
        return (err if code else out).strip()

    def document(*words: str) -> Any:
        return json.loads(told(*words, "--json"))

    async def write() -> None:
        async with (app := beating(tmp_path, ManualClock())):
            await counted(app, 0)

    async def make() -> None:
        async with app_on(tmp_path).connect():
            pass

    run(make())
    assert told(*URL).startswith("no schedules")
    run(write())
    assert document(*URL) == {"schedules": [BEAT]}
    foreseen = document("--app", "beats:app")
    assert foreseen == {"schedules": [{**BEAT, "next_at": "2023-11-14T22:13:30Z"}]}
    assert "2023-11-14 22:13:30Z" in told("--app", "beats:app")
    assert told("pause", "beat", *URL) == "schedule beat is paused"
    assert told(*URL).split()[-1] == "paused"
    assert document("pause", "beat", *URL) == {**BEAT, "paused": True}
    assert told("resume", "beat", "--app", "beats:app") == "schedule beat goes on"
    (row,) = document(*URL)["schedules"]
    assert not row["paused"]
    assert row["counted_to"] > BEAT["counted_to"]
    assert "there is no schedule 'bet'" in told("pause", "bet", *URL, code=3)
