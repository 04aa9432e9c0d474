"""The command line `perdure queues`, and `perdure start` into a queue."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import main
from perdure.queued import Queued
from tests.harness import app_on, run

PROGRAM = """
from perdure import App

app = App("sqlite:///runs.db")

@app.run(version=1)
async def write(context): ...

app.queue("mail", concurrency=4, rate=(100, 60.0))
"""
URL = ("--url", "sqlite:///runs.db")
MAIL = {
    "name": "mail",
    "pending": 1,
    "running": 0,
    "concurrency": 4,
    "key_concurrency": None,
    "rate_runs": 100,
    "rate_seconds": 60.0,
    "paused": False,
}


def test_queues_are_listed_paused_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "letters.py").write_text(PROGRAM)

    def told(*words: str, code: int = 0) -> str:
        assert main([*words]) == code
        out, err = capsys.readouterr()
        return (err if code else out).strip()

    def document(*words: str) -> Any:
        return json.loads(told("queues", *words, "--json"))

    start = ("start", "letters:app", "write", "--id", "letter", "--queue")
    assert "no queue 'male'" in told(*start, "male", code=3)
    assert told("queues", *URL).startswith("no queues")
    told(*start, "mail", "--key", "ada", "--priority", "-2")
    run(placed(tmp_path))
    assert "pending in queue mail" in told("show", "letter", *URL)
    shown = json.loads(told("show", "letter", *URL, "--json"))
    assert shown["run"]["queued"] == {"queue": "mail", "key": "ada", "priority": -2}
    assert document(*URL) == document("--app", "letters:app") == {"queues": [MAIL]}
    assert told("queues", *URL).split()[-8:] == ["mail", "1", "0", "4", "100", "in", "60", "s"]
    assert told("queues", "pause", "mail", *URL) == "queue mail is paused"
    assert told("queues", *URL).split()[-1] == "paused"
    assert document("pause", "mail", *URL) == {**MAIL, "paused": True}
    assert told("queues", "resume", "mail", "--app", "letters:app") == "queue mail goes on"
    assert document(*URL) == {"queues": [MAIL]}
    assert "there is no queue 'male'" in told("queues", "pause", "male", *URL, code=3)


async def placed(folder: Path) -> None:
    async with app_on(folder).connect() as app:
        (row,) = await app.list()
        assert row.queued == Queued("mail", "ada", -2)
