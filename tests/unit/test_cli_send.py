from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context
from perdure.cli import main
from perdure.cli import start as start_command
from tests.asking import Typed, leave
from tests.harness import RUN, finish, run, sql
from tests.waiting import waiting_app

MODULE = """
from tests.unit.test_cli_send import listening
from pathlib import Path
app = listening(Path())
"""


def listening(folder: Path) -> App:
    """Return an App whose one function waits for so many messages and returns them."""
    app = waiting_app(folder)

    @app.run(version=1)
    async def listen(context: Context, count: int) -> list[Any]:
        return [await context.wait_for("go") for _ in range(count)]

    return app


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in a folder whose one run waits for three messages."""
    monkeypatch.chdir(tmp_path)
    run(leave(listening(tmp_path), "listen", 3))
    return Typed(capsys)


def test_messages_reach_a_run_in_their_order(
    tmp_path: Path, cli: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"$perdure": 1}')))
    sent = f"message other (m-1) is in the inbox of run {RUN}, which is suspended and does not wait"
    assert cli("send", RUN, "other", "7", "--id", "m-1")[1].startswith(sent)
    for _ in range(2):
        code, out, err = cli("send", RUN, "go", '["a", 1.5]', "--id", "m-2", "--by", "ada")
        inbox = f"message go (m-2) is in the inbox of run {RUN}"
        assert (code, out, err) == (0, f"{inbox}, which goes on when a worker serves it\n", "")
    document = cli.document("send", RUN, "go", "-")
    assert (document["run"]["state"], document["message"]["taken_by"]) == ("pending", None)
    assert cli("send", RUN, "go")[0] == 0
    assert run(finish(listening(tmp_path))) == [["a", 1.5], {"$perdure": 1}, None]

    again = cli("send", RUN, "go", '["a", 1.5]', "--id", "m-2")[1]
    assert f"message go (m-2) was taken by wait/1 of run {RUN}, 20" in again
    messages = cli.document("show", RUN)["messages"]
    assert [each["taken_by"] for each in messages] == [None, "wait/1", "wait/2", "wait/3"]
    assert (messages[1]["payload"], messages[1]["sent_by"]) == (["a", 1.5], "ada")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((RUN, "go", "2", "--id", "m-1"), 2, f"`perdure show {RUN} --url sqlite:///runs.db` shows"),
        ((RUN, "go", "{"), 2, "the message '{' is not JSON"),
        ((RUN, "no name"), 2, "is not an identifier"),
        ((RUN, "go", "1", "--id", "perdure:run:1"), 2, "does not begin with 'perdure:'"),
        ((RUN, "go", "1", "--by", ""), 2, "--by is empty"),
        (("none", "go"), 3, "there is no run 'none'"),
    ],
)
def test_what_cannot_be_sent_so_says_why(
    cli: Typed, words: tuple[str, ...], code: int, said: str
) -> None:
    assert cli("send", RUN, "go", "1", "--id", "m-1")[0] == 0
    ended, out, err = cli("send", *words)
    assert (ended, out, said in err) == (code, "", True), err
    assert sql(Path(), "SELECT message_id FROM messages") == [("m-1",)]


def test_a_run_that_has_ended_takes_no_message(cli: Typed) -> None:
    assert cli("cancel", RUN)[0] == 0
    code, _, err = cli("send", RUN, "go")
    assert (code, err) == (1, f"perdure: run {RUN} is cancelled: it takes no more messages\n")


def test_whoever_waits_for_a_run_is_told_what_it_waits_for(
    tmp_path: Path,
    cli: Typed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start_command, "_PAUSE_SECONDS", 0.001)
    (tmp_path / "cli_listening.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    start = ["start", "cli_listening:app", "listen", "2", "--id", "told", "--wait"]
    err = ""

    async def whole() -> int:
        nonlocal err
        async with (app := listening(tmp_path)):
            waiting = asyncio.create_task(asyncio.to_thread(main, start))
            for number in (1, 2):
                while err.count("perdure send") < number:
                    await asyncio.sleep(0)
                    err += capsys.readouterr().err
                await app.send("told", "go", {"x": number})
            return await waiting

    assert run(whole()) == 0
    stands = "run told is suspended, waits for message go"
    way = "  perdure send told go JSON --app cli_listening:app  # JSON is what it says"
    assert err.splitlines()[-4:] == [stands, way, stands, way]
    assert json.loads(capsys.readouterr().out) == [{"x": 1}, {"x": 2}]


def test_a_run_that_is_started_may_have_a_deadline(
    tmp_path: Path, cli: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cli_listening.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["start", "cli_listening:app", "listen", "1", "--id", "late", "--deadline"]
    assert main([*words, "0"]) == 2
    assert "is not a number above 0" in capsys.readouterr().err
    assert main([*words, "90"]) == 0
    ((seconds,),) = sql(tmp_path, "SELECT deadline_at - created_at FROM runs WHERE run_id = 'late'")
    assert 30 < seconds < 91  # the clock goes on from the one to the other
