from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import EffectAmbiguous, OperationIdentity, RunState, guard
from perdure.cli import main
from perdure.engine.store import RunEnd, RunProblem
from tests.harness import RUN, run, sql, stored
from tests.receipts import Bank, shop

Cli = Callable[..., tuple[int, str, str]]
ENDS = {
    "completed": RunEnd(RunState.COMPLETED, b'"the result"'),
    "failed": RunEnd(RunState.FAILED, problem=RunProblem("C", "ValueError", "the message")),
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run command lines on the database of the folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_URL", "sqlite:///runs.db")
    monkeypatch.setenv("LOGNAME", "ada")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    return call


def fill(folder: Path, state: str = "completed") -> None:
    async def write() -> None:
        async with stored(folder) as it:
            await it.append("tool", 1, b'"what went in"')
            if state in ENDS:
                await it.store.end_run(it.fence, ENDS[state])

    run(write())


def document(done: tuple[int, str, str], code: int = 0) -> Any:
    assert (done[0], done[2]) == (code, "")
    return json.loads(done[1])


def erased(folder: Path) -> bool:
    return sql(folder, "SELECT count(*) FROM records") == [(0,)]


def test_an_erased_run_says_so_wherever_it_is_looked_at(cli: Cli, tmp_path: Path) -> None:
    fill(tmp_path)
    done = cli("erase", RUN, "--why", "request 17", "--yes")
    assert done == (0, "run run-1 is erased\n", "")
    (row,) = document(cli("runs", "--json"))["runs"]
    assert (row["state"], row["result"], row["problem"]) == ("completed", None, None)
    assert (row["erased_by"], row["erased_why"], row["erasing"]) == ("ada", "request 17", False)
    assert row["erased_at"].endswith("Z")
    shown = document(cli("show", RUN, "--json"))
    assert shown["run"] == {**row, "input": None}
    assert shown["operations"] == []
    assert "completed, erased" in cli("runs")[1]
    text = cli("show", RUN)[1]
    assert "by ada: request 17" in text
    assert "what it recorded is gone" in text
    code, _, err = cli("show", RUN, "--operation", "tool/1")
    assert (code, "was erased by ada (request 17)" in err) == (3, True)


@pytest.mark.parametrize("words", [("--json",), ()])
def test_who_decided_can_be_said(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    fill(tmp_path)
    code, out, _ = cli("erase", RUN, "--why", "x", "--by", "bob", "--yes", "--rewrite", *words)
    assert code == 0
    assert sql(tmp_path, "SELECT erased_by FROM runs") == [("bob",)]
    if words:
        assert json.loads(out)["erased_by"] == "bob"


def test_erasing_again_does_nothing_unless_the_file_is_to_be_rewritten(
    cli: Cli, tmp_path: Path
) -> None:
    fill(tmp_path)
    cli("erase", RUN, "--why", "x", "--yes")
    again = cli("erase", RUN, "--why", "y", "--yes")
    assert again == (1, "run run-1 was erased by ada already; nothing was done\n", "")
    assert cli("erase", RUN, "--why", "y", "--yes", "--rewrite")[0] == 0
    assert sql(tmp_path, "SELECT erased_why FROM runs") == [("x",)]


def test_an_erasure_that_was_cut_short_is_shown_and_gone_on_with(cli: Cli, tmp_path: Path) -> None:
    fill(tmp_path)
    sql(
        tmp_path,
        "UPDATE runs SET erased_at = 1, erased_by = 'ada', erased_why = 'x', erasing = 1",
    )
    assert "completed, not yet erased whole" in cli("runs")[1]
    text = cli("show", RUN)[1]
    assert "`perdure erase run-1 --why x` goes on with it" in text
    assert "what went in" not in text
    assert document(cli("show", RUN, "--json"))["run"]["erasing"] is True
    assert cli("erase", RUN, "--why", "y", "--yes")[0] == 0
    assert erased(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["erase", RUN], 2, "required: --why"),
        (["erase", RUN, "--why", " ", "--yes"], 2, "--why is empty"),
        (["erase", RUN, "--why", "x", "--by", "", "--yes"], 2, "--by is empty"),
        (["erase", RUN, "--why", "x"], 2, "pass --yes where nobody can be asked"),
        (["erase", "other", "--why", "x", "--yes"], 3, "there is no run 'other'"),
    ],
)
def test_what_is_not_asked_for_properly_is_refused(
    cli: Cli, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    fill(tmp_path)
    ended, out, err = cli(*words)
    assert (ended, out) == (code, "")
    assert message in err
    assert json.loads(cli(*words, "--json")[1])["error"]["exit_code"] == code
    assert not erased(tmp_path)


def test_a_run_that_goes_on_is_refused_without_a_question(cli: Cli, tmp_path: Path) -> None:
    fill(tmp_path, "running")
    code, _, err = cli("erase", RUN, "--why", "x")
    assert code == 2
    assert "cancel it first" in err


async def guarded(folder: Path, *answers: Any) -> None:
    """Leave receipts of an invoice, which is no run."""
    async with shop(folder) as it:
        for number, answer in enumerate(answers):
            with contextlib.suppress(EffectAmbiguous):
                identity = OperationIdentity("invoice-17", "charge", "bank", number)
                await guard(it.store, identity, Bank(answer).send)


def test_receipts_outside_of_runs_are_erased_by_what_they_belong_to(
    cli: Cli, tmp_path: Path
) -> None:
    run(guarded(tmp_path, "paid", "paid too"))
    line = ("erase", "invoice-17", "--why", "request 17")
    assert "pass --yes where nobody can be asked" in cli(*line)[2]
    assert "--rewrite is for runs" in cli(*line, "--yes", "--rewrite")[2]
    erased = document(cli(*line, "--yes", "--json"))
    assert (erased["run_id"], erased["erased"], len(erased["operation_keys"])) == (
        "invoice-17",
        2,
        2,
    )
    assert sql(tmp_path, "SELECT count(*) FROM receipts") == [(0,)]
    code, _, err = cli("effects", "show", erased["operation_keys"][0])
    assert (code, "ada erased it (request 17)" in err) == (3, True)
    code, _, err = cli(*line, "--yes")
    assert (code, "there is no run 'invoice-17'" in err) == (3, True)


def test_receipts_that_nobody_has_settled_are_refused_without_a_question(
    cli: Cli, tmp_path: Path
) -> None:
    run(guarded(tmp_path, "paid", ConnectionResetError("gone")))
    code, out, err = cli("erase", "invoice-17", "--why", "x")
    assert (code, out, "settle them first" in err) == (2, "", True)
    assert sql(tmp_path, "SELECT count(*) FROM receipts") == [(2,)]


def test_an_erased_run_is_not_resumed(cli: Cli, tmp_path: Path) -> None:
    fill(tmp_path, "failed")
    cli("erase", RUN, "--why", "x", "--yes")
    code, out, _ = cli("resume", RUN)
    assert (code, out) == (
        1,
        "run run-1 is failed, was erased and never goes on; nothing was done\n",
    )


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], object]) -> Iterator[None]:
    """Let stdin and stderr be a terminal at which `answer` is called after the question."""
    ours, theirs = pty.openpty()

    def look() -> None:
        seen = b""
        while b"[y/N] " not in seen:
            seen += os.read(ours, 1000)
        answer(ours)

    person = threading.Thread(target=look, daemon=True)
    with os.fdopen(theirs, "r", closefd=False) as stdin, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", stderr)
        person.start()
        try:
            yield
        finally:
            person.join(10)
            monkeypatch.undo()
    os.close(ours)


@pytest.mark.parametrize("typed", ["y", "n"])
def test_it_asks_about_receipts_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
) -> None:
    run(guarded(tmp_path, "paid"))
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with terminal(monkeypatch, lambda keys: os.write(keys, f"{typed}\n".encode())):
        code = main(["erase", "invoice-17", "--why", "x", "--by", "a", "--url", url])
    left = 0 if typed == "y" else 1
    assert (code, sql(tmp_path, "SELECT count(*) FROM receipts")) == (left, [(left,)])
    said = "stay as they are; nothing was done" if left else "are erased"
    assert f"the receipts of invoice-17 {said}: op-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "code"), [("y", 0), ("YES", 0), ("n", 1), ("", 1), ("yesterday", 1)]
)
def test_it_asks_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    fill(tmp_path)
    line = ["erase", RUN, "--why", "x", "--by", "a", "--url", f"sqlite:///{tmp_path / 'runs.db'}"]
    with terminal(monkeypatch, lambda keys: os.write(keys, f"{typed}\n".encode())):
        assert main(line) == code
    assert erased(tmp_path) is (code == 0)


def test_the_question_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    line = ["erase", RUN, "--why", "x", "--by", "a", "--url", f"sqlite:///{tmp_path / 'runs.db'}"]
    with terminal(monkeypatch, lambda keys: os.kill(os.getpid(), signal.SIGINT)):
        assert main(line) == 130
    assert not erased(tmp_path)
    assert signal.getsignal(signal.SIGINT) is handler
