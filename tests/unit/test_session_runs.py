"""Runs and steps as readers see them, without the defects that come of partial histories."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.session.codec import UiMessageCodec
from perdure.session.lifecycle import RunFault, RunStatus, read_lifecycle
from perdure.session.message import WireMessage, parse_message
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree
from perdure.session.view import View
from tests.conformance.session.conversation import Run, Wire, answer, say


def events(*said: str) -> list[WireMessage]:
    """Return events of one run: `name`, or `name invocation`, or `end reason`."""
    found: list[WireMessage] = []
    for number, text in enumerate(said):
        name, _, more = text.partition(" ")
        header = "run-reason" if name == "end" else "invocation-id"
        transport = {"run-id": "r", **({header: more} if more else {})}
        found.append(
            parse_message(
                {
                    "serial": f"s{number}",
                    "name": f"ai-run-{name}",
                    "extras": {"ai": {"transport": transport}},
                }
            )
        )
    return found


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ((), RunStatus.ACTIVE),
        (("start",), RunStatus.ACTIVE),
        (("start", "suspend"), RunStatus.SUSPENDED),
        (("start", "suspend", "resume"), RunStatus.ACTIVE),
        (("start", "suspend", "start"), RunStatus.ACTIVE),
        (("start", "end"), RunStatus.COMPLETE),
        (("start", "end cancelled", "start"), RunStatus.CANCELLED),
        (("start", "end error", "resume"), RunStatus.ERROR),
        (("start", "end cancelled", "end complete"), RunStatus.COMPLETE),
        (("end cancelled",), RunStatus.CANCELLED),
        (("end odd",), RunStatus.ERROR),
        (("start one", "suspend one", "resume two", "suspend one"), RunStatus.ACTIVE),
        (("start one", "suspend one", "resume two", "suspend two"), RunStatus.SUSPENDED),
        (("start one", "suspend one", "resume two", "suspend"), RunStatus.SUSPENDED),
        (("start", "end", "suspend"), RunStatus.SUSPENDED),
    ],
    ids=str,
)
def test_where_a_run_stands(said: tuple[str, ...], status: RunStatus) -> None:
    assert read_lifecycle(events(*said)).status is status


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ({}, RunFault(104008, 500, "agent reported an error")),
        ({"error-code": "40160", "error-message": "no"}, RunFault(40160, 401, "no")),
        ({"error-code": "104010", "error-message": ""}, RunFault(104010, 500, "")),
        ({"error-code": "7"}, RunFault(7, 500, "agent reported an error")),
        ({"error-code": "x"}, RunFault(104008, 500, "agent reported an error")),
        ({"error-code": "9" * 5000}, RunFault(104008, 500, "agent reported an error")),
    ],
    ids=["nothing", "both", "empty", "small", "no number", "a long number"],
)
def test_why_a_run_failed(headers: dict[str, str], fault: RunFault) -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    run.end("error", **headers)
    assert read_lifecycle([parse_message(wire.lines[-1])]).fault == fault


def read(lines: list[dict[str, Any]]) -> Tree:
    tree = Tree(UiMessageCodec())
    for line in lines:
        tree.apply(parse_message(line))
    return tree


def run_of(tree: Tree, run_id: str = "r") -> RunNode:
    run = tree.run(run_id)
    assert run is not None
    return run


def texts(tree: Tree) -> list[str]:
    return [
        part["text"]
        for message in View(tree).messages
        for part in message.message["parts"]
        if "text" in part
    ]


def opened(wire: Wire) -> Run:
    run = Run(wire, "r", say(wire, "u1", "hi"))
    run.start()
    return run


def test_late_output_of_a_dead_attempt_never_shows() -> None:
    wire = Wire()
    run = opened(wire)
    dead = run.step("s")
    dead.text("dead", end="")
    retry = run.step("s")
    dead.text("zombie", stream="t2")
    dead.output("finish")
    retry.text("good")
    dead.end("failed")
    retry.end()
    for lines in (wire.lines, wire.lines[::-1]):
        creates_first = sorted(lines, key=lambda line: line["action"] == "message.append")
        creates_first.sort(key=lambda line: (line["serial"], line["version"]["serial"]))
        tree = read(creates_first)
        # Nor does it count as the end of the step that the retry is in.
        (message,) = run_of(tree).messages()
        assert message.message["parts"] == [{"type": "text", "text": "good"}]
        (step,) = run_of(tree).info.steps
        assert (step.status, step.attempt_count) == ("complete", 2)


def test_output_before_its_start_waits_and_the_dead_attempt_stays_until_then() -> None:
    wire = Wire()
    run = opened(wire)
    run.step("s").text("dead")
    before = len(wire.lines)
    run.step("s").text("good")
    start, rest = wire.lines[before], wire.lines[before + 1 :]
    tree = read(wire.lines[:before] + rest)
    assert texts(tree) == ["hi", "dead"]
    tree.apply(parse_message(start))
    assert texts(tree) == ["hi", "good"]


def test_an_empty_retry_blanks_the_step_and_no_other() -> None:
    wire = Wire()
    run = opened(wire)
    run.step("one").text("first")
    run.step("two").text("dead")
    run.step("two")
    other = Run(wire, "other", run.trigger)
    other.start()
    other.step("one")
    tree = read(wire.lines)
    assert [len(message.message["parts"]) for message in run_of(tree).messages()] == [2]


def test_an_end_on_an_older_page_than_its_run_still_ends_it() -> None:
    wire = Wire()
    run = opened(wire)
    run.step().text("said")
    run.end("cancelled")
    tree = Tree(UiMessageCodec())
    tree.apply(parse_message(wire.lines[-1]))
    assert tree.run("r") is None
    assert View(tree).runs == []
    for line in wire.lines[:-1]:
        tree.apply(parse_message(line))
    assert run_of(tree).info.lifecycle.status is RunStatus.CANCELLED


def test_a_resumed_run_does_not_vanish_while_its_start_is_not_loaded() -> None:
    wire = Wire()
    run = opened(wire)
    step = run.step()
    step.call("c", "rm", "{}")
    step.output("tool-approval-request", toolCallId="c", approvalId="a")
    run.event("ai-run-suspend")
    answer(wire, run, step.message, "c")
    run.resume()
    resumed = len(wire.lines)
    run.step().text("went on")
    tree = read(wire.lines[resumed:])
    assert texts(tree) == ["went on"]
    assert run_of(read(wire.lines[resumed - 2 :])).parent is None
    assert run_of(tree).info.client_id == "alice"
    for line in wire.lines[:resumed]:
        tree.apply(parse_message(line))
    info = run_of(tree).info
    assert (info.parent, info.invocation_id, info.start_serial) == (
        "u1",
        "r-inv-1",
        wire.lines[1]["serial"],
    )
    assert [step.step_id for step in info.steps] == ["r-inv-1-step-0", "r-inv-2-step-1"]
    assert texts(tree) == ["hi", "went on"]


def test_events_that_do_not_say_of_what_they_are_do_nothing() -> None:
    wire = Wire()
    for name in ("ai-run-start", "ai-step-start", "ai-step-end"):
        wire.publish(name, {"step-id": "s"})
    wire.publish("ai-step-end", {"run-id": "r", "step-id": "s"})
    wire.publish("ai-step-start", {"run-id": "r"})
    wire.publish("ai-output", {"run-id": "r", "codec-message-id": "m"}, {"kind": "unheard-of"})
    tree = read(wire.lines)
    assert tree.nodes == []


def test_what_is_said_twice_counts_alike_in_either_order() -> None:
    wire = Wire()
    early = say(wire, "steer", "before the start", **{"run-id": "r"})
    run = opened(wire)
    step = run.step("s")
    step.text("said")
    step.end("failed")
    step.end("cancelled")
    fork = {"role": "assistant", "codec-message-id": "f", "event-id": "e", "stream": "false"}
    codec = {"kind": "tool-result", "toolCallId": "c"}
    wire.publish("ai-input", {**fork, "supersedes": "left"}, codec, {"output": 1})
    for run_id in ("first", "second"):
        Run(wire, run_id, {"id": "f", "parent": "f", "structural-parent": "u1"}).start()
    for lines in (wire.lines, sorted(wire.lines, key=lambda line: line["serial"], reverse=True)):
        tree = read(lines)
        info = run_of(tree).info
        assert (info.parent, [each.status for each in info.steps]) == ("u1", ["cancelled"])
        assert info.start_serial > str(wire.lines[0]["serial"])
        owner = tree.owner("f")
        assert owner is not None
        assert owner.key == "first"
        assert [len(run_of(tree, key).log.entries()) for key in ("first", "second")] == [1, 0]
    assert early["id"] == "steer"


def test_a_message_is_of_the_node_that_had_it_first() -> None:
    wire = Wire()
    say(wire, "m", "mine")
    say(wire, "m", "and not yours", **{"run-id": "r"})
    for lines in (wire.lines, wire.lines[::-1]):
        owner = read(lines).owner("m")
        assert owner is not None
        assert owner.key == "m"


def test_what_is_appended_after_the_end_shows_live_as_it_does_in_history() -> None:
    wire = Wire()
    run = opened(wire)
    serial = run.step().output("text", stream="t", id="t")
    wire.append(serial, "one", "complete")
    tree = read(wire.lines)
    assert texts(tree) == ["hi", "one"]
    wire.append(serial, " more", "complete")
    tree.apply(parse_message(wire.lines[-1]))
    assert texts(tree) == ["hi", "one more"]
