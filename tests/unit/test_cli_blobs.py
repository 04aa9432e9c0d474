"""What commands say and do where large values stand in a blob store that was not given."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import App
from perdure.blobs import FileBlobs
from perdure.cli import main
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, once, run, sql

Cli = Callable[..., tuple[int, str, str]]
URL = ("--url", "sqlite:///runs.db")
MODULE = """
from perdure import App
from perdure.blobs import FileBlobs
app = App("sqlite:///runs.db", blobs=FileBlobs("blobs", over_bytes=4096))
"""
WITH = ("--app", "cli_blobs:app")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run command lines in a folder with a run of long ago, of which a value is in a blob."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_blobs", raising=False)
    Path("cli_blobs.py").write_text(MODULE)
    run(once(_app(tmp_path), "echo", os.urandom(9000).hex()))
    assert len(_files()) == 1

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    return call


def _app(folder: Path) -> App:
    app = app_on(folder, clock=ManualClock(), blobs=FileBlobs("blobs", over_bytes=4096))

    @app.run(version=1)
    async def echo(context: object, value: str) -> int:
        return len(value)

    return app


def _files() -> list[Path]:
    return [path for path in Path("blobs").rglob("*") if path.is_file()]


def test_gc_deletes_nothing_where_it_could_not_delete_all(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("gc", *URL, "--dry-run")
    assert (code, out.startswith("would delete 1 runs")) == (1, True)
    assert "stands in a blob store, which was not given" in out
    assert "--app MODULE:APP" in json.loads(cli("gc", *URL, "--dry-run", "--json")[1])["advice"]
    code, out, err = cli("gc", *URL)
    assert (code, out) == (2, "")
    assert "nothing was deleted, because some of what is in this database stands in a blob" in err
    assert sql(tmp_path, "SELECT count(*) FROM runs") == [(1,)]
    code, out, _ = cli("gc", *WITH)
    assert (code, out.startswith("deleted 1 runs"), _files()) == (0, True, [])
    assert cli("gc", *URL)[0] == 0


def test_an_erasure_that_leaves_blobs_says_what_is_done_and_what_is_not(cli: Cli) -> None:
    code, out, err = cli("erase", "run-1", *URL, "--why", "asked", "--by", "ada", "--yes")
    assert (code, err) == (1, "")
    assert out.startswith("run run-1 is erased from the database, but large values stand in a blob")
    (row,) = json.loads(cli("runs", *URL, "--json")[1])["runs"]
    assert (row["erased_by"], row["erasing"], len(_files())) == ("ada", True, 1)
    code, out, _ = cli("erase", "run-1", *WITH, "--why", "asked", "--by", "ada", "--yes")
    assert (code, out, _files()) == (0, "run run-1 is erased\n", [])


def test_doctor_notes_that_it_was_not_given_the_blobs(cli: Cli) -> None:
    found = json.loads(cli("doctor", *URL, "--json")[1])
    assert [note["code"] for note in found["notes"]] == ["blobs"]
    assert found["well"]
    assert json.loads(cli("doctor", *WITH, "--json")[1])["notes"] == []
