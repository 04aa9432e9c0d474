from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest

from tests.asking import COURIER, LONG, REFUND, Typed, asking, leave
from tests.harness import RUN, finish, run, sql


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in a folder whose one run waits for two answers."""
    monkeypatch.chdir(tmp_path)
    run(leave(asking(tmp_path)))
    return Typed(capsys)


def test_what_runs_ask_for_is_listed_and_whole_where_it_is_asked_for(cli: Typed) -> None:
    code, out, err = cli("approvals")
    header, refund, courier, _, more = out.splitlines()
    assert (code, err) == (0, "")
    columns = "run item what arguments asked (UTC) expires (UTC) digest"
    assert header.split() == columns.split()
    assert refund.split()[:6] == [RUN, REFUND, "approval", "of", "refund", '{"order":"A-1"}']
    assert (courier.split()[1:5], "…" in courier) == ([COURIER, "result", "of", "courier"], True)
    assert f"`perdure approvals {RUN} {REFUND} --url sqlite:///runs.db` shows the first" in more

    one, other = cli.document("approvals", RUN)["approvals"]
    assert (one["arguments"], one["kind"], one["expires_at"]) == (
        {"order": "A-1"},
        "approval",
        None,
    )
    assert (other["arguments"], other["kind"], other["answer"]) == (
        {"note": LONG},
        "external",
        None,
    )
    assert other["expires_at"] > other["asked_at"]
    assert one["asked_by"] == "branch.a.1.approval/1"
    assert refund.endswith(f"  {one['digest'][:12]}")

    code, out, _ = cli("approvals", RUN, COURIER)
    assert (code, "\x1b" in out) == (0, False)
    assert "y" * 200 in out
    assert f"SHA-256 {other['digest']}" in out
    for command in other["commands"]:
        assert f"\n  {command}  # " in out
    assert cli.document("approvals", RUN, COURIER) == other


def test_the_commands_that_are_shown_answer_and_the_run_goes_on(tmp_path: Path, cli: Typed) -> None:
    one, other = cli.document("approvals")["approvals"]
    approve, deny = one["commands"]
    answer, _ = other["commands"]
    assert shlex.split(deny)[:4] == ["perdure", "deny", RUN, REFUND]
    code, out, err = cli(*shlex.split(approve)[1:], "--by", "ada")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"approval of refund, item {REFUND} of run {RUN}, is approved by ada",
        f"run {RUN} goes on when a worker serves it; it waits for an answer to {COURIER} as well",
    ]
    words = shlex.split(answer.replace("JSON", """'{"parcel": 7}'"""))[1:]
    told = cli.document(*words, "--by", "bo")
    assert (told["open"], told["run"]["state"], told["approval"]["open"]) == ([], "pending", False)
    result = {"decision": "result", "value": {"parcel": 7}, "is_error": False}
    assert (told["approval"]["answer"], told["approval"]["answered_by"]) == (result, "bo")
    assert cli("approvals")[1] == "no run waits for an answer\n"
    assert cli("approvals", RUN)[1] == f"run {RUN} waits for no answer\n"
    assert run(finish(asking(tmp_path))) == [
        "Approve(arguments=None)",
        "Result(value={'parcel': 7}, is_error=False)",
    ]


@pytest.mark.parametrize(
    ("words", "said", "answer"),
    [
        (("approve", REFUND, "--arguments", '{"order": "B"}'), "approved with other", "'B'"),
        (("deny", REFUND, "--why", "too much"), "denied by", "Deny(message='too much')"),
        (("deny", COURIER), "denied by", "Deny(message='')"),
        (("answer", COURIER, "-"), "answered by", "Result(value=[8], is_error=False)"),
        (("answer", COURIER, '"lost"', "--error"), "answered with an error", "is_error=True"),
    ],
)
def test_every_answer_reaches_the_run(
    tmp_path: Path,
    cli: Typed,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
    answer: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[8]")))
    name, item, *rest = words
    code, out, _ = cli(name, RUN, item, *rest)
    assert (code, said in out) == (0, True)
    other = COURIER if item == REFUND else REFUND
    assert cli("deny", RUN, other, "--by", "bo")[0] == 0
    assert any(answer in told for told in run(finish(asking(tmp_path))))
    listed = cli("approvals", "--all")[1]
    assert (said.removesuffix(" by") in listed, "denied" in listed) == (True, True)


def test_of_two_answers_the_second_is_told_who_won(cli: Typed) -> None:
    assert cli("approve", RUN, REFUND, "--by", "ada")[0] == 0
    code, out, err = cli("deny", RUN, REFUND, "--by", "bo")
    assert (code, out) == (1, "")
    assert f"item {REFUND} of run {RUN}, was approved by ada, 20" in err
    assert f"`perdure approvals {RUN} {REFUND} --url sqlite:///runs.db` shows what stands" in err
    shown = cli("approvals", RUN, REFUND)[1]
    assert "  state      approved by ada, 20" in shown
    assert "type one of these" not in shown
    assert cli.document("approvals", RUN, REFUND)["commands"] == []
    answered, waiting = cli.document("approvals", "--all")["approvals"]
    assert (answered["open"], waiting["open"]) == (False, True)


def test_an_answer_that_comes_too_late_is_none(cli: Typed) -> None:
    assert cli("cancel", RUN)[0] == 0
    code, _, err = cli("approve", RUN, REFUND, "--by", "ada")
    assert (code, f"`perdure show {RUN} --url sqlite:///runs.db` shows what became" in err) == (
        1,
        True,
    )
    assert "  closed  " in cli("approvals", "--all")[1]


def test_a_digest_binds_an_answer_to_what_was_looked_at(cli: Typed) -> None:
    digest = cli.document("approvals", RUN, REFUND)["digest"]
    code, _, err = cli("approve", RUN, REFUND, "--digest", "0" * 12)
    assert (code, f"the digest {digest}, not {'0' * 12}; nothing was written" in err) == (1, True)
    for wrong in (digest[:7], "no digest", digest + "0"):
        code, _, err = cli("approve", RUN, REFUND, "--digest", wrong)
        assert (code, "it takes 8 to 64 characters of 0-9 a-f" in err) == (2, True)
    assert sql(Path(), "SELECT count(*) FROM approvals WHERE decision IS NULL") == [(2,)]
    assert cli("approve", RUN, REFUND, "--digest", digest[:8].upper())[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("approve", RUN, "9"), 3, f"waits for an answer to {REFUND}, {COURIER}: `perdure appr"),
        (("approvals", RUN, "9"), 3, f"`perdure approvals {RUN} --url sqlite:///runs.db --all`"),
        (("approve", "none", "9"), 3, "there is no run 'none'"),
        (("approvals", "none"), 3, "there is no run 'none'"),
        (("approve", RUN, COURIER), 2, f"`perdure answer {RUN} {COURIER} JSON --url sqlite"),
        (("approve", RUN, REFUND, "--arguments", "[1]"), 2, "are no JSON object"),
        (("approve", RUN, REFUND, "--arguments", "{"), 2, "is not JSON"),
        (("answer", RUN, REFUND), 2, "JSON"),
        (("answer", RUN, REFUND, "1"), 2, f"`perdure approve {RUN} {REFUND} --url sqlite:"),
        (("deny", RUN, REFUND, "--by", " "), 2, "--by is empty"),
    ],
)
def test_what_cannot_be_answered_so_says_what_to_do(
    cli: Typed, words: tuple[str, ...], code: int, said: str
) -> None:
    ended, out, err = cli(*words)
    assert (ended, out, said in err) == (code, "", True), err
    assert sql(Path(), "SELECT count(*) FROM approvals WHERE decision IS NULL") == [(2,)]


def test_what_an_erased_run_asked_for_is_gone(cli: Typed) -> None:
    assert cli("cancel", RUN)[0] == 0
    assert cli("erase", RUN, "--why", "asked for", "--by", "ada", "--yes")[0] == 0
    for words in (("approvals", RUN), ("approve", RUN, REFUND), ("send", RUN, "go")):
        code, _, err = cli(*words)
        assert (code, "was erased by ada" in err) == (3, True)
    assert cli("approvals", "--all")[1] == "no run asked for anything\n"
    assert cli.document("show", RUN)["approvals"] == []


def test_more_than_the_limit_is_said(cli: Typed) -> None:
    out = cli("approvals", "--limit", "1")[1]
    assert (REFUND in out, COURIER in out) == (True, False)
    assert out.endswith("\nthere are more than 1; see them with --limit\n")
    assert len(cli.document("approvals", "--limit", "1")["approvals"]) == 1
