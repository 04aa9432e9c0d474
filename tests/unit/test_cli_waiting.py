from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState
from perdure.cli.naming import name_of
from perdure.cli.words import moment
from perdure.engine.history import OperationRow
from perdure.testing.manual_clock import ManualClock
from tests.asking import COURIER, REFUND, Typed, asking, leave
from tests.harness import RUN, finish, run, sql, stored
from tests.waiting import put_away, stands, waiting_app

PLACE = "--url sqlite:///runs.db"
MODULE = """
from tests.asking import asking
from pathlib import Path
app = asking(Path())
"""


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    monkeypatch.chdir(tmp_path)
    return Typed(capsys)


def _app(folder: Path, **options: Any) -> App:
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def sleeper(context: Context, seconds: float) -> float:
        await context.sleep(seconds)
        return seconds

    @app.run(version=1)
    async def listener(context: Context, seconds: float | None) -> Any:
        return await context.wait_for("go", timeout_seconds=seconds)

    @app.run(version=1)
    async def twice(context: Context) -> None:
        nap, branches = context.branch("a"), [context.branch("b"), context.branch("c")]
        await context.wait_for("go")
        await asyncio.gather(nap.sleep(60.0), *(branch.wait_for("go") for branch in branches))

    @app.run(version=1)
    async def parent(context: Context) -> int:
        child = await context.start_child("listener", None, run_id="kid")
        return await child.result()

    return app


def test_a_suspended_run_shows_what_it_waits_for_and_what_ends_that(
    tmp_path: Path, cli: Typed
) -> None:
    run(leave(asking(tmp_path)))
    code, out, _ = cli("show", RUN)
    courier = cli.document("approvals", RUN, COURIER)
    until = courier["expires_at"][:19].replace("T", " ")
    first = f"run {RUN}  suspended, waits for approval of refund and result of courier"
    assert (code, out.splitlines()[0]) == (0, f"{first}, until {until}Z at most")
    waits = out.partition("\nwaits\n")[2].splitlines()
    asked = courier["asked_at"][:19].replace("T", " ")
    assert waits[1].split("  ")[0] == "branch.a.1.approval/1"
    assert waits[2].endswith(f"  result of courier   {asked}  {until}")
    assert out.index("\nopen approvals\n") < out.index("\nto end a wait, type one of these\n")
    for command in courier["commands"]:
        assert f"\n  {command}  # " in out

    shown = cli.document("show", RUN)
    one, other = shown["waits"]
    assert (one["name"], one["item_id"], one["until"]) == ("approval of refund", REFUND, None)
    assert (other["key"], other["missing"]) == (f"{RUN}/branch.b.1.approval/1", True)
    assert (other["since"], other["until"]) == (courier["asked_at"], courier["expires_at"])
    assert shown["run"]["wake_at"] == courier["expires_at"]
    assert [each["item_id"] for each in shown["approvals"]] == [REFUND, COURIER]


def test_what_was_answered_or_sent_has_come_and_is_to_be_taken(tmp_path: Path, cli: Typed) -> None:
    run(leave(asking(tmp_path)))
    assert cli("approve", RUN, REFUND, "--by", "ada")[0] == 0
    out = cli("show", RUN)[1]
    line = next(line for line in out.splitlines() if line.startswith("branch.a.1.approval/1"))
    assert line.endswith("  it has come, and is to be taken")
    assert f"perdure approve {RUN}" not in out
    assert f"\nanswer to {REFUND}  " in out
    (missing,) = [each["name"] for each in cli.document("show", RUN)["waits"] if each["missing"]]
    assert missing == "result of courier"


def test_a_message_ends_a_wait_by_the_command_that_is_shown(tmp_path: Path, cli: Typed) -> None:
    run(leave(_app(tmp_path), "listener", 60.0))
    out = cli("show", RUN)[1]
    command = f"perdure send {RUN} go JSON {PLACE}"
    assert f"\n  {command}  # JSON is what it says" in out
    (wait,) = cli.document("show", RUN)["waits"]
    whole = datetime.fromisoformat(wait["until"]) - datetime.fromisoformat(wait["since"])
    assert (wait["message"], whole.total_seconds()) == ("go", 60.0)
    words = shlex.split(command.replace("JSON", "[1]").replace(PLACE, ""))[1:]
    assert cli(*words, "--id", "m-1", "--by", "ada")[0] == 0
    assert "perdure send" not in cli("show", RUN)[1]
    assert run(finish(_app(tmp_path))) == [1]

    code, out, _ = cli("show", RUN)
    inbox = out.partition("\ninbox\n")[2].splitlines()
    assert (code, inbox[1].split()[:2], inbox[1].split()[4:]) == (
        0,
        ["go", "m-1"],
        ["ada", "wait/1", "[1]"],
    )
    shown = cli.document("show", RUN)
    assert [each["name"] for each in shown["operations"]] == ["message go"]
    (message,) = shown["messages"]
    assert (message["taken_by"], message["payload"], shown["waits"]) == ("wait/1", [1], [])
    assert "\n  what      message go\n" in cli("show", RUN, "--operation", "wait/1")[1]


def test_a_message_that_was_taken_ends_no_other_wait(tmp_path: Path, cli: Typed) -> None:
    async def whole() -> float | None:
        async with (app := _app(tmp_path)):
            await app.start("twice", run_id=RUN)
            await app.send(RUN, "go")
            while not await app.store.list_operations(RUN):
                await asyncio.sleep(0)
            await put_away(app)
            return (await app.find(RUN)).wake_at

    until = moment(run(whole()))
    first, *lines = cli("show", RUN)[1].splitlines()
    assert first == f"run {RUN}  suspended, waits for 2 x message go, until {until} at most"
    assert [line.split("  ")[0] for line in lines if line.startswith("branch.")] == [
        "branch.a.1.sleep/1",
        "branch.b.1.wait/1",
        "branch.c.1.wait/1",
    ]


def test_a_run_that_waits_is_not_resumed_but_its_wait_may_be_ended(
    tmp_path: Path, cli: Typed
) -> None:
    run(leave(_app(tmp_path), "sleeper", 3600.0, "s"))
    run(leave(_app(tmp_path), "listener", None, "m"))
    until = moment(sql(tmp_path, "SELECT wake_at FROM runs WHERE run_id = 's'")[0][0])
    code, out, _ = cli("resume", "s")
    sleeping = f"run s is sleeping until {until}; nothing was done\nit goes on by itself then\n"
    assert (code, out) == (1, sleeping)
    assert cli("show", "s")[1].startswith(f"run s  sleeping until {until}\n")
    assert cli("resume", "m")[1].splitlines() == [
        "run m is suspended, waits for message go; nothing was done",
        "to end its wait, type one of these",
        f"  perdure send m go JSON {PLACE}  # JSON is what it says",
    ]
    document = cli.document("resume", "m", code=1)
    assert document["commands"] == [f"perdure send m go JSON {PLACE}"]
    assert cli.document("resume", "s", code=1)["commands"] == []

    listed = {line.split()[0]: line for line in cli("runs")[1].splitlines()}
    assert "until (UTC)" in listed["run"]
    assert f"  sleeping   {until[:-1]}  " in listed["s"]
    assert "  suspended  " in listed["m"]
    suspended = cli("runs", "--state", "suspended")[1]
    assert ("m  " in suspended, "sleeper" in suspended, "until" in suspended) == (
        True,
        False,
        False,
    )
    assert cli("cancel", "s", "m")[:2] == (0, "run s is cancelled\nrun m is cancelled\n")
    assert cli("runs", "--state", "sleeping")[1] == "no runs are sleeping\n"


def test_a_run_that_is_being_cancelled_is_told_from_others(tmp_path: Path, cli: Typed) -> None:
    async def whole() -> list[tuple[int, str, str]]:
        async with stored(tmp_path):
            words = [("cancel", RUN), ("cancel", RUN), ("resume", RUN), ("show", RUN)]
            return [await asyncio.to_thread(cli, *each) for each in words]

    first, second, resumed, shown = run(whole())
    asked = f"run {RUN} is cancelling; its worker has been asked to cancel it\n"
    assert first == (0, asked, "")
    assert second == (0, asked.replace("has been", "was").replace(" it\n", " it before\n"), "")
    being = f"run {RUN} is being cancelled by its worker; nothing was done\n"
    assert resumed[:2] == (1, being)
    assert shown[1].startswith(f"run {RUN}  cancelling\n")


def test_a_run_shows_which_one_started_it_and_which_it_started(tmp_path: Path, cli: Typed) -> None:
    app = _app(tmp_path)

    async def whole() -> None:
        async with app:
            await app.start("parent", run_id=RUN, deadline_seconds=5000.0)
            await stands(app, RunState.SUSPENDED)
            await stands(app, RunState.SUSPENDED, run_id="kid")

    run(whole())
    code, out, _ = cli("show", RUN)
    assert (code, out.splitlines()[0].split(", ")[1]) == (0, "waits for end of run kid")
    deadline = cli.document("show", RUN)["run"]["deadline_at"][:19].replace("T", " ")
    assert f"\n  deadline   {deadline}Z\n" in out
    children = out.partition("\nruns that it started\n")[2].splitlines()
    assert children[1].split()[:3] == ["kid", "listener@1", "suspended"]
    assert "perdure send" not in out
    assert f"\n  started by run {RUN}\n" in cli("show", "kid")[1]
    shown = cli.document("show", RUN)
    assert [(each["run_id"], each["parent"]) for each in shown["children"]] == [("kid", RUN)]
    assert [each["name"] for each in shown["operations"]] == ["start of run kid"]


@pytest.mark.parametrize(
    ("kind", "handler_id", "document", "name"),
    [
        ("approval_resume", "perdure.wait", b'{"name":"go"}', "message go"),
        ("approval_resume", "perdure.external_event", b'{"name":"e.1"}', "event e.1"),
        ("approval_resume", "perdure.approval", b'{"kind":"approval","name":"f"}', "approval of f"),
        ("approval_resume", "perdure.approval", b'{"kind":"external","name":"f"}', "result of f"),
        ("approval_resume", "perdure.approval", None, "approval"),
        ("approval_resume", "perdure.approval", b"[", "approval of ?"),
        ("approval_resume", "support-approvals", b'{"name":"x"}', "approval"),
        ("retry_delay", "perdure.sleep", None, "sleep"),
    ],
)
def test_operations_that_wait_are_called_what_they_wait_for(
    kind: str, handler_id: str, document: bytes | None, name: str
) -> None:
    row = OperationRow("s", 1, kind, handler_id, b"", "success", 1, 1, 1, 1, 1.0, 2.0)
    assert name_of(row, document) == name


def test_a_damaged_input_takes_only_its_name_from_an_operation(tmp_path: Path, cli: Typed) -> None:
    run(leave(_app(tmp_path), "listener", None))
    assert cli("send", RUN, "go")[0] == 0
    assert run(finish(_app(tmp_path))) is None
    sql(tmp_path, "UPDATE records SET input_tail = CAST('{}' AS BLOB)")
    assert [each["name"] for each in cli.document("show", RUN)["operations"]] == ["approval"]


def test_what_is_damaged_does_not_hide_the_run(tmp_path: Path, cli: Typed) -> None:
    app = waiting_app(tmp_path)

    @app.run(version=1)
    async def counter(context: Context) -> None:
        await context.call(len, [1])
        await context.sleep(60)

    async def whole() -> None:
        async with app:
            await app.start(counter, run_id=RUN)
            await put_away(app)

    run(whole())
    sql(tmp_path, "UPDATE records SET payload = CAST('{' AS BLOB), payload_packing = 1")
    code, out, _ = cli("show", RUN)
    assert (code, "\n  waits      for what cannot be read: " in out) == (0, True)


def test_a_deployment_checks_the_runs_that_wait(
    tmp_path: Path, cli: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from perdure.cli import main

    run(leave(asking(tmp_path)))
    run(leave(_app(tmp_path), "sleeper", 3600.0, "s"))
    (tmp_path / "cli_asking.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "cli_asking:app", "--open", "--all"]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "  goes_on  " in lines[RUN]
    assert "  unserved  " in lines["s"]

    code = main(["doctor", "--app", "cli_asking:app", "--json"])
    found = capsys.readouterr().out
    assert (code, '"unserved"' in found) == (1, True)
    assert "1 run of sleeper@1 sleeps or waits for what comes from outside" in found
    assert "work@1" not in found
    assert "`perdure runs --state suspended --app cli_asking:app`" in found


def test_doctor_counts_answers_that_are_waited_for(tmp_path: Path, cli: Typed) -> None:
    run(leave(asking(tmp_path)))
    found = cli.document("doctor")
    assert (found["well"], found["approvals"], found["late"], found["runs"]["suspended"]) == (
        True,
        2,
        0,
        1,
    )
    (note,) = found["notes"]
    lists = f"2 items wait for an answer: `perdure approvals {PLACE}` lists what runs ask for"
    assert (note["code"], note["message"]) == ("approvals", lists)


def test_doctor_finds_runs_that_were_to_go_on_by_themselves(tmp_path: Path, cli: Typed) -> None:
    clock = ManualClock()

    async def whole() -> None:
        await leave(_app(tmp_path, clock=clock), "sleeper", 3600.0, "s")

    run(whole())
    code, out, _ = cli("doctor")
    assert (code, "1 run waits and no worker is alive" in out) == (1, True)

    async def beside_a_worker() -> tuple[Any, Any]:
        async with stored(tmp_path):
            late = await asyncio.to_thread(cli.document, "doctor", code=1)
            sql(tmp_path, "UPDATE runs SET wake_at = ?", datetime.now(UTC).timestamp() - 1)
            return late, await asyncio.to_thread(cli.document, "doctor")

    late, soon = run(beside_a_worker())
    (finding,) = late["findings"]
    assert (finding["code"], finding["run_id"], late["late"]) == ("late", "s", 1)
    assert finding["message"].startswith("1 run was to go on by itself, s ")
    assert (soon["findings"], soon["late"]) == ([], 1)
