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
    for dry, be in ((["--dry-run"], "would be"), ([], "was")):
        code, out, err = cli("gc", *URL, *dry)
        assert (code, out) == (2, "")
        assert f"nothing {be} deleted, because some of what is in this database stands in" in err
        assert "a blob store, which was not given" in err
        assert "--app MODULE:APP" in err
    assert sql(tmp_path, "SELECT count(*) FROM runs") == [(1,)]
    assert cli("gc", *WITH, "--dry-run")[1].startswith("would delete 1 runs")
    code, out, _ = cli("gc", *WITH)
    assert (code, out.startswith("deleted 1 runs"), _files()) == (0, True, [])
    assert cli("gc", *URL)[0] == 0


def test_gc_deletes_nothing_where_the_blobs_stand_elsewhere(cli: Cli, tmp_path: Path) -> None:
    """As one finds who starts it in another folder, and names that of the blobs by a short path."""
    Path("blobs").rename("moved")
    for dry, be in ((["--dry-run"], "would be"), ([], "was")):
        code, out, err = cli("gc", *WITH, *dry)
        assert (code, out) == (2, "")
        assert f"nothing {be} deleted, because none of the large values that were looked for" in err
        assert str(tmp_path / "blobs") in err
    assert sql(tmp_path, "SELECT count(*) FROM runs") == [(1,)]
    Path("moved").rename("blobs")
    code, out, _ = cli("gc", *WITH)
    assert (code, out.startswith("deleted 1 runs"), _files()) == (0, True, [])


def test_an_export_says_as_bad_usage_that_it_was_not_given_the_blobs(cli: Cli) -> None:
    code, out, err = cli("export", "run-1", *URL)
    assert (code, out) == (2, "")
    assert "stands in a blob store that was not given" in err
    assert cli("export", "run-2", *URL)[0] == 3
    assert cli("export", "run-1", *WITH, "-o", "run.json")[0] == 0


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


def test_doctor_finds_that_blobs_are_not_there(cli: Cli) -> None:
    (path,) = _files()
    path.rename("away")
    code, out, _ = cli("doctor", *WITH, "--json")
    (finding,) = json.loads(out)["findings"]
    assert (code, finding["code"]) == (1, "blobs")
    assert "1 of 1 large value that the database needs cannot be found" in finding["message"]
    assert str(path) in finding["message"]
    Path("blobs").rename("moved")
    Path("blobs").write_text("no folder")
    (finding,) = json.loads(cli("doctor", *WITH, "--json")[1])["findings"]
    assert "the folder of blobs" in finding["message"]
