from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from perdure.cli import main
from tests.harness import RUN, run
from tests.unit.test_archive import Shop

SOURCE = ("--url", "sqlite:///runs.db")
TARGET = ("--url", "sqlite:///there.db")


class Stream(io.TextIOWrapper):
    """A standard stream of bytes."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(io.BytesIO(data), "utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_goes_into_a_file_and_from_there_into_a_new_database(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Shop(folder).play("talk"))
    assert main(["export", RUN, "-o", "run.json", *SOURCE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run_id"], told["records"], told["receipts"]) == (RUN, 7, 7)
    file = folder / "run.json"
    assert told["bytes"] == file.stat().st_size
    # It may hold secrets that the database keeps from others.
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []
    assert main(["import", "run.json", *TARGET]) == 0
    assert capsys.readouterr().out == f"run {RUN} is imported: it is completed\n"
    assert main(["import", "run.json", *TARGET, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["state"], again["imported"]) == ("completed", False)


def test_a_run_goes_through_a_pipe_and_says_what_lets_it_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Shop(folder).play("wait"))
    out = Stream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["export", RUN, *SOURCE]) == 0
    data = out.buffer.getvalue()  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdin", Stream(data))
    assert main(["import", "-", *TARGET]) == 0
    assert (
        f"`perdure resume {RUN} --url sqlite:///there.db` is for one that nothing there"
        in capsys.readouterr().out
    )


def test_what_cannot_be_done_changes_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Shop(folder).play("fail"))
    (folder / "run.json").write_text("older")
    for words, code, said in (
        (["export", "another", "-o", "run.json", *SOURCE], 3, "no run 'another'"),
        (["export", RUN, "-o", "none/run.json", *SOURCE], 2, "cannot be written: No such"),
        (["export", RUN, "-o", ".", *SOURCE], 2, "cannot be written"),
        (["import", "none.json", *TARGET], 2, "cannot be read: No such"),
        (["import", "run.json", *TARGET], 2, "no exported run"),
    ):
        assert main(words) == code
        assert said in capsys.readouterr().err
    assert sorted(entry.name for entry in folder.iterdir()) == ["run.json", "runs.db"]
    assert (folder / "run.json").read_text() == "older"
