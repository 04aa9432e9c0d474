"""The command line on a database server, whose password it shows to nobody."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from perdure import App, Context, EffectAmbiguous, OperationIdentity, RunFailed
from perdure.cli import main
from perdure.receipts import ReceiptStore, guard
from tests.asking import COURIER, REFUND, asking, leave
from tests.harness import RUN, finish, run
from tests.storages import kept_on_server, url_of

Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def url(postgres: str, tmp_path: Path) -> Iterator[str]:
    """Name a schema by a URL with a password, which the server asks nobody for."""
    with kept_on_server(tmp_path, postgres):
        parts = urlsplit(url_of(tmp_path))
        host = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=f"{parts.username}:hidden@{host}"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], url: str) -> Cli:
    """Run a command on a URL; returns the exit code and all that it says."""

    def call(*words: str) -> tuple[int, str]:
        code = main([*words, "--url", url])
        out, err = capsys.readouterr()
        assert "hidden" not in out + err
        return code, out + err

    return call


def document(done: tuple[int, str]) -> Any:
    assert done[0] == 0, done
    return json.loads(done[1])


async def leave_runs(url: str) -> None:
    """Leave a run that is done, one that failed, one that waits, and an effect in doubt."""
    app = App(url)

    @app.run(version=1)
    async def double(context: Context, number: int) -> int:
        if number < 0:
            raise ValueError("no luck")
        return 2 * number

    async with app:
        assert await (await app.start(double, 4, run_id="done")).result() == 8
        with pytest.raises(RunFailed):
            await (await app.start(double, -1, run_id="failed")).result()
    async with app.connect():
        await app.start(double, 1, run_id="waits")

    async def lose(identity: OperationIdentity) -> None:
        raise ConnectionResetError("gone")

    async with ReceiptStore(url) as store:
        with pytest.raises(EffectAmbiguous):
            await guard(store, OperationIdentity("invoice-17", "charge", "bank"), lose)


def test_the_commands_do_on_a_server_what_they_do_on_a_file(url: str, cli: Cli) -> None:
    run(leave_runs(url))
    states = {row["run_id"]: row["state"] for row in document(cli("runs", "--json"))["runs"]}
    assert states == {"done": "completed", "failed": "failed", "waits": "pending"}
    code, said = cli("show", "done")
    assert (code, "completed" in said) == (0, True)
    assert "cancelled" in cli("cancel", "waits")[1]
    assert "pending" in cli("resume", "failed", "--json")[1]
    assert cli("show", "none") == (3, "perdure: there is no run 'none' in this store\n")
    code, said = cli("doctor")
    assert (code, "PostgreSQL" in said) == (1, True)
    (effect,) = document(cli("effects", "--json"))["receipts"]
    assert effect["state"] == "ambiguous"
    key = effect["operation_key"]
    settle = ("--did-not-land", "--why", "the statement", "--by", "ada", "--expect-version", "2")
    assert cli("effects", "settle", key, *settle)[0] == 0
    assert cli("erase", "done", "--by", "ada", "--why", "asked for", "--yes")[0] == 0
    assert "erased" in cli("show", "done")[1]


def test_approvals_and_messages_on_a_server(tmp_path: Path, cli: Cli) -> None:
    run(leave(asking(tmp_path)))
    assert document(cli("doctor", "--json"))["approvals"] == 2
    found = document(cli("approvals", "--json"))["approvals"]
    one, other = sorted(found, key=lambda each: each["item_id"])
    assert (one["item_id"], other["item_id"]) == (REFUND, COURIER)
    for command, words in ((one["commands"][0], ()), (other["commands"][1], ("--by", "bo"))):
        typed = shlex.split(command.replace("TEXT", "lost"))
        place = typed.index("--url")
        assert cli(*typed[1:place], *typed[place + 2 :], *words)[0] == 0
    code, said = cli("deny", RUN, REFUND)
    assert (code, f"item {REFUND} of run {RUN}, was approved by" in said) == (1, True)
    assert document(cli("send", RUN, "note", "[1]", "--json"))["message"]["payload"] == [1]
    told = ["Approve(arguments=None)", "Deny(message='lost')"]
    assert run(finish(asking(tmp_path))) == told
    assert [each["name"] for each in document(cli("show", RUN, "--json"))["messages"]][2:] == [
        "note"
    ]


def test_a_schema_that_is_not_there_is_not_made_by_looking(url: str, cli: Cli) -> None:
    code, said = cli("runs")
    assert (code, "there is no schema" in said) == (3, True)


def test_a_command_to_be_typed_again_lacks_the_password_and_says_so(
    url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(leave_runs(url))
    place = f"--url {shlex.quote(url.replace(':hidden@', ':***@'))}"
    note = "*** stands for the password of the database: type it, or set PERDURE_URL to the URL"
    for words, command in (
        (("show", "failed"), f"`perdure resume failed {place}`"),
        (("doctor",), f"`perdure runs --state failed {place}`"),
        (("resume", "failed"), ""),
    ):
        said = cli(*words)[1]
        assert command in said
        assert (note in said) == bool(command)
    key = document(cli("effects", "--json"))["receipts"][0]["operation_key"]
    said = cli("effects", "show", key)[1]
    assert said.count(place) == 3
    assert said.count(note) == 1
    monkeypatch.setenv("PERDURE_URL", url)
    assert main(["effects", "show", key]) == 0
    said = capsys.readouterr().out
    assert f"perdure effects settle {key} --did-not-land --why" in said
