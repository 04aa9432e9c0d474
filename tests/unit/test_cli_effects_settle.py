from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, effect
from perdure.cli import main
from perdure.errors import RunNeedsAttention
from tests.commands import LOST, SETTLE, URL, Commands, doubtful
from tests.harness import app_on, finish, run
from tests.receipts import KEY

ONE_OF = "one of --landed JSON, --did-not-land and --retry"
TWICE = '{"a":1,"a":2}'


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capsys)


@pytest.mark.parametrize(
    ("words", "state", "result", "decision", "then"),
    [
        (("--landed", '{"id": 7}'), "completed", {"id": 7}, "landed", "gets this answer"),
        (("--landed", "-"), "completed", [8], "landed", "gets this answer"),
        (("--did-not-land",), "failed", None, "never_will", "sends it again"),
        (("--retry",), "failed", None, "send_again", "sends it again"),
    ],
)
def test_a_person_settles_an_effect(
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    state: str,
    result: Any,
    decision: str,
    then: str,
) -> None:
    doubtful(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[8]")))
    code, out, _ = cli("settle", KEY, *words, *SETTLE)
    assert (code, out) == (
        0,
        f"effect {KEY} is {state}, as ada decided\nwhoever asks for it next {then}\n",
    )
    shown = cli.document("show", KEY)
    receipt, (decided,) = shown["receipt"], shown["decisions"]
    assert (receipt["state"], receipt["result"], shown["commands"]) == (state, result, [])
    assert decided.pop("at") > "2023-11-15"
    assert decided == {
        "decision": decision,
        "attempt": 1,
        "version": 2,
        "by": "ada",
        "why": "the statement",
    }
    assert receipt["residual_duplicate_risk"] == (decision == "send_again")
    again = cli.document("settle", KEY, "--retry", *SETTLE, code=1)["error"]
    assert (again["code"], again["exit_code"]) == ("StaleDecision", 1)
    assert f"is {state} with version 3, last decided by ada" in again["message"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("KEY --retry --why x --expect-version 1", 1, "is ambiguous with version 2, and"),
        ("op-ffffff --retry --why x --expect-version 1", 3, "there is no receipt 'op-ffffff'"),
        ("", 2, f"takes KEY, {ONE_OF}, --why TEXT, --expect-version N too; `perdure effects show"),
        ("KEY --why x", 2, f"takes {ONE_OF}, --expect-version N too; `perdure effects show op-"),
        ("KEY --retry --did-not-land --why x --expect-version 2", 2, "not allowed with argument"),
        ("--retry --expect-version 2 KEY", 2, "takes --why TEXT too"),
        ("--why x --retry KEY", 2, "takes --expect-version N too"),
        ("KEY --retry --why= --expect-version 2", 2, "--why is empty"),
        ("KEY --retry --why x --by= --expect-version 2", 2, "--by is empty"),
        ("KEY --landed { --why x --expect-version 2", 2, "the answer '{' is not JSON"),
        (f"KEY --landed {TWICE} --why x --expect-version 2", 2, 'name "a" stands twice'),
        (
            "KEY --retry --why \udcff --expect-version 2",
            2,
            r"'\udcff' has bytes in it that are not",
        ),
    ],
)
def test_a_decision_that_cannot_be_written_is_refused(
    tmp_path: Path, cli: Commands, words: str, code: int, told: str
) -> None:
    doubtful(tmp_path)
    ended, out, err = cli("settle", *words.replace("KEY", KEY).split())
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert told in err
    assert cli.document("show", KEY)["receipt"]["version"] == 2


def test_who_decides_is_who_is_logged_in(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    doubtful(tmp_path)
    cli("settle", KEY, "--retry", *SETTLE[:4])
    assert cli.document("show", KEY)["receipt"]["decided_by"] == "grace"


# --- in a run ------------------------------------------------------------------------------------


def paying(folder: Path, *answers: Any) -> App:
    """Return an App whose run pays, at a bank that answers like this."""
    app = app_on(folder)
    left = [*answers]

    @effect(target="bank")
    async def charge(order: str) -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @app.run(version=1)
    async def refund(context: Context, order: str) -> Any:
        return await context.call(charge, order)

    return app


async def park(app: App) -> None:
    async with app:
        await app.start("refund", "A-1", run_id="run-1")
        with pytest.raises(RunNeedsAttention, match="perdure effects show op-"):
            await app.handle("run-1").result()


@pytest.mark.parametrize(
    ("words", "result", "then"),
    [
        (("--landed", '"r-1"'), "r-1", "with this answer"),
        (("--did-not-land",), "r-2", "and sends it again"),
    ],
)
def test_a_decision_frees_the_run_and_the_run_goes_on(
    tmp_path: Path, cli: Commands, words: tuple[str, ...], result: str, then: str
) -> None:
    app = paying(tmp_path, LOST, "r-2")
    run(park(app))
    shown = cli.document("show", _only_key(cli))
    receipt = shown["receipt"]
    assert (receipt["run_id"], receipt["idempotency_key"], receipt["ordinal"]) == (
        "run-1",
        "call",
        1,
    )
    assert (shown["run"]["state"], shown["worker"]) == ("needs_attention", "worker")
    key, version = receipt["operation_key"], str(receipt["version"])
    told = ("settle", key, *words, "--why", "so", "--expect-version", version)
    code, out, _ = cli(*told)
    assert (code, out.splitlines()[1]) == (0, f"run run-1 goes on {then} when a worker serves it")
    assert run(finish(app)) == result
    shown = cli.document("show", key)
    assert shown["run"]["result"] == result
    assert shown["input"] == {"args": ["A-1"], "kwargs": {}}


def _only_key(cli: Commands) -> str:
    (receipt,) = cli.document()["receipts"]
    return receipt["operation_key"]


def test_a_run_and_the_doctor_tell_of_its_effect(
    tmp_path: Path, cli: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    run(park(paying(tmp_path, LOST)))
    key = _only_key(cli)
    assert main(["show", "run-1", *URL]) == 0
    out = capsys.readouterr().out
    assert "\neffects not known to be applied once\n" in out
    assert key[:15] in out.splitlines()[-1]
    assert f"\n  goes on by `perdure effects settle {key[:15]} {' '.join(URL)}`" in out
    main(["show", "run-1", *URL, "--json"])
    (receipt,) = json.loads(capsys.readouterr().out)["receipts"]
    assert (receipt["operation_key"], receipt["state"]) == (key, "ambiguous")
    assert main(["doctor", *URL, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    parked, doubt = found["findings"]
    assert (parked["code"], "perdure resume" in parked["message"]) == ("needs_attention", False)
    assert (doubt["code"], found["ambiguous"]) == ("ambiguous", 1)
    assert doubt["message"].startswith("nobody knows whether 1 effect was applied: ")
    assert doubt["message"].endswith(f"`perdure effects show {key} {' '.join(URL)}`")


def test_resuming_what_waits_for_a_person_says_so(
    tmp_path: Path, cli: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    run(park(paying(tmp_path, LOST)))
    key = _only_key(cli)
    assert main(["resume", "run-1", *URL, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["commands"]) == (
        "needs_attention",
        cli.document("show", key)["commands"],
    )
    assert main(["resume", "run-1", *URL]) == 1
    out = capsys.readouterr().out
    assert out.startswith("run run-1 stays needs_attention: nobody knows whether")
    assert all(f"\n  {command}  # " in out for command in told["commands"])
    line = next(each for each in out.splitlines() if "--landed" in each)
    words = shlex.split(line.partition("  # ")[0].replace("JSON", "'\"r-1\"'"))
    assert main(words[1:]) == 0
    assert run(finish(paying(tmp_path))) == "r-1"


def test_what_waits_for_a_person_is_executed_where_somebody_wants_that(
    tmp_path: Path, cli: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    run(park(paying(tmp_path, LOST)))
    key = _only_key(cli)
    assert main(["resume", "run-1", *URL, "--anyway"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run run-1 is pending, and parked again if nobody knows of its effect")
    assert f"it waits for `perdure effects settle {key[:15]} {' '.join(URL)}`" in out
    with pytest.raises(RunNeedsAttention):
        run(finish(paying(tmp_path)))
    cli("settle", key, "--landed", '"r-1"', *SETTLE)
    main(["cancel", "run-1", *URL])
    assert "goes on by" not in capsys.readouterr().out
