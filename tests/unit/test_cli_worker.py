from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from perdure.cli import main

PROGRAM = """
import asyncio, os, signal
from perdure import App

app = App("sqlite:///runs.db")

@app.run(version=1)
async def fails(context):
    raise ValueError("no\\x1b[31m luck\\ntoday")

@app.run(version=1)
async def ends(context):
    while (await app.find("bad")).state != "failed":
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
"""
Work = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Work]:
    """Let a worker execute a run that fails and one that ends it; returns stdout and the log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "log_shop.py").write_text(PROGRAM)
    sys.modules.pop("log_shop", None)

    def call(*words: str, handlers: Sequence[logging.Handler] = ()) -> tuple[str, list[str]]:
        # As in a process of its own, where nobody else listens to the root logger.
        monkeypatch.setattr(logging.getLogger(), "handlers", [*handlers])
        assert main(["start", "log_shop:app", "fails", "--id", "bad"]) == 0
        assert main(["start", "log_shop:app", "ends", "--id", "end"]) == 0
        capsys.readouterr()
        assert main(["worker", "log_shop:app", *words]) == 0
        out, err = capsys.readouterr()
        return out, err.splitlines()

    yield call
    sys.modules.pop("log_shop", None)


def test_a_worker_tells_what_becomes_of_its_runs(work: Work) -> None:
    before = logging.getLogger("perdure").level
    out, lines = work()
    assert re.match(r"worker \(pid \d+\) serves ends@1, fails@1 from sqlite:///runs.db\n", out)
    assert out.endswith("2 runs claimed, 0 operations executed, 0 operations replayed\n")
    told = [line for line in lines if re.match(r"\d\d:\d\d:\d\dZ (INFO|ERROR) +run ", line)]
    assert sum("run bad" in line for line in told) == 2
    (failed,) = [line for line in told if "Z ERROR " in line]
    assert "no\\x1b[31m luck today" in failed
    assert "Traceback (most recent call last):" in lines
    assert [line for line in lines if "\x1b" in line] == []
    assert (logging.getLogger().handlers, logging.getLogger("perdure").level) == ([], before)


def test_a_quiet_worker_tells_only_of_trouble(work: Work) -> None:
    _, lines = work("--quiet", "--name", "seven")
    assert [line for line in lines if " INFO " in line] == []
    assert sum("Z ERROR " in line for line in lines) == 1


def test_json_stays_alone_on_stdout(work: Work) -> None:
    out, lines = work("--json")
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["serving", "stopped"]
    assert any("Z ERROR " in line for line in lines)


def test_logging_that_the_program_set_up_is_left_alone(work: Work) -> None:
    heard: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.levelname)

    _, lines = work(handlers=[Own()])
    assert {"INFO", "ERROR"} <= {*heard}
    assert [line for line in lines if "ERROR" in line] == []
