"""What one reader sees of a conversation with branches, and what agents find in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.errors import InvalidSessionArgument
from perdure.session.codec import TextCodec, UiMessageCodec
from perdure.session.message import parse_message
from perdure.session.prompt import prompt, question
from perdure.session.reader import SessionReader
from perdure.session.view import View
from perdure.testing.session_oracle import Recording
from tests.conformance.session.conversation import Run, Wire, fork_with_result, regenerate, say


def turn(wire: Wire, run_id: str, trigger: dict[str, str | None], *said: str) -> Run:
    run = Run(wire, run_id, trigger)
    run.start()
    for text in said:
        step = run.step()
        step.text(text)
        step.end()
    run.end()
    return run


def reader_of(wire: Wire) -> SessionReader:
    reader = SessionReader(UiMessageCodec())
    reader.load([parse_message(line) for line in wire.lines if "name" in line], more=False)
    for line in wire.lines:
        if "name" not in line:
            reader.receive(parse_message(line))
    reader.reveal(1000)
    return reader


def shown(view: View) -> list[str]:
    return [
        part["text"]
        for message in view.messages
        for part in message.message["parts"]
        if "text" in part
    ]


def test_of_two_answers_to_one_message_the_newer_shows_unless_one_is_chosen() -> None:
    wire = Wire()
    asked = say(wire, "u1", "ask")
    turn(wire, "a", asked, "first")
    view = reader_of(wire).view
    seen = len(wire.lines)
    turn(wire, "b", asked, "second")
    for line in wire.lines[seen:]:
        view.receive(parse_message(line))
    assert shown(view) == ["ask", "second"]
    view.select("a")
    assert shown(view) == ["ask", "first"]
    assert [run.run_id for run in view.runs] == ["a"]
    view.select("b")
    assert shown(view) == ["ask", "second"]


def test_an_answer_is_replaced_from_one_of_its_messages_on() -> None:
    wire = Wire()
    first = turn(wire, "a", say(wire, "u1", "ask"), "one", "two", "three")
    turn(wire, "b", regenerate(wire, first.messages[1], first.messages[0]), "other")
    view = reader_of(wire).view
    assert shown(view) == ["ask", "one", "other"]
    assert [run.run_id for run in view.runs] == ["a", "b"]
    view.select("a")
    assert shown(view) == ["ask", "one", "two", "three"]


@pytest.mark.parametrize("missed", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_an_edit_shows_to_whoever_makes_it_and_not_to_who_reads_the_other(
    own: bool, missed: bool
) -> None:
    wire = Wire()
    turn(wire, "a", say(wire, "u1", "ask"), "one")
    reader = reader_of(wire)
    seen = len(wire.lines)
    turn(wire, "b", say(wire, "u2", "ask again", **{"fork-of": "u1"}), "two")
    if own:
        reader.view.select("u2")
    edit = Recording(parse_message(line) for line in wire.lines[seen:])
    if missed:
        (page,) = edit.history(len(edit.deliveries), 100)
        reader.resync(page, "behind it", more=True)
    for delivery in edit.deliveries:
        reader.receive(delivery)
    assert shown(reader.view) == (["ask again", "two"] if own else ["ask", "one"])
    assert shown(View(reader.tree)) == ["ask again", "two"]


def test_an_edit_of_an_edit_stands_in_for_the_first() -> None:
    wire = Wire()
    say(wire, "u1", "one")
    say(wire, "u2", "two", **{"fork-of": "u1"})
    say(wire, "u3", "three", **{"fork-of": "u2"})
    say(wire, "u4", "of a circle", **{"fork-of": "u4"})
    assert shown(reader_of(wire).view) == ["three", "of a circle"]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("codec", [UiMessageCodec, TextCodec])
def test_a_run_that_was_left_for_another_is_not_shown(
    opened: bool, codec: Callable[[], UiMessageCodec | TextCodec]
) -> None:
    wire = Wire()
    left = Run(wire, "left", say(wire, "u1", "ask"))
    left.start()
    left.step().text("before")
    left.event("ai-run-suspend")
    part = {"type": "tool-find", "toolCallId": "c", "state": "input-available"}
    seed = [{"id": "d", "role": "assistant", "parts": [part]}]
    trigger = fork_with_result(wire, left, "u1", "c", seed)
    if opened:
        turn(wire, "next", trigger, "after")
    reader = SessionReader(codec())
    for line in wire.lines:
        reader.receive(parse_message(line))
    reader.view.select("left")
    assert [run.run_id for run in reader.view.runs] == ["next" if opened else trigger["id"]]
    if codec is UiMessageCodec:
        answered = reader.view.messages[1].message["parts"][0]
        assert (answered["state"], answered["output"]) == ("output-available", {"found": 3})
        assert shown(reader.view) == (["ask", "after"] if opened else ["ask"])
    else:
        said = [message.message["text"] for message in reader.view.messages]
        assert said == (["ask", "after"] if opened else ["ask"])


def test_what_was_read_does_not_change_with_what_comes_later() -> None:
    wire = Wire()
    run = Run(wire, "a", say(wire, "u1", "ask"))
    run.start()
    run.step().text("one", " two")
    reader = SessionReader(UiMessageCodec())
    for line in wire.lines[:-2]:
        reader.receive(parse_message(line))
    before = reader.view.messages
    for line in wire.lines[-2:]:
        reader.receive(parse_message(line))
    assert reader.view.messages[1].message["parts"][1]["text"] == "one two"
    assert before[1].message["parts"][1]["text"] == "one"


def test_a_message_that_is_not_stored_is_no_part_of_the_conversation() -> None:
    wire = Wire()
    run = Run(wire, "a", say(wire, "u1", "ask"))
    run.step().output("data-x", 1)
    wire.lines[-1]["extras"]["ephemeral"] = True
    reader = SessionReader(UiMessageCodec())
    assert [reader.receive(parse_message(line)) for line in wire.lines] == [True, True, False]


def test_a_reader_knows_where_to_go_on() -> None:
    wire = Wire()
    turn(wire, "a", say(wire, "u1", "ask"), "one", "two")
    recorded = Recording(parse_message(line) for line in wire.lines)
    (page,) = recorded.history(len(wire.lines), 100)
    stored = page[::-1]
    reader = SessionReader(UiMessageCodec())
    reader.attach("before")
    assert (reader.cursor, reader.oldest, reader.complete) == ("before", None, False)
    reader.receive(stored[6])
    reader.load(stored[3:6], more=True)
    assert (reader.cursor, reader.oldest) == (stored[6].version, stored[3].serial)
    assert shown(reader.view) == ["two"]
    reader.resync(stored[2:], "far ahead", more=True)
    assert (reader.cursor, reader.oldest, reader.complete) == ("far ahead", stored[2].serial, False)
    assert reader.reveal(5) == 5
    reader.load(stored[:2], more=False)
    reader.resync(stored[6:], "further", more=True)
    assert reader.complete
    assert reader.reveal(5) == 0
    assert shown(reader.view) == ["ask", "one", "two"]


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_view_reveals_a_positive_number_of_messages(limit: int) -> None:
    with pytest.raises(InvalidSessionArgument, match="1 or more"):
        SessionReader(UiMessageCodec()).reveal(limit)


def test_requests_are_found_in_history_too() -> None:
    wire = Wire()
    wire.publish("ai-cancel", {"event-id": "e1", "input-codec-message-id": "u1"})
    wire.publish("ai-cancel", {"event-id": "e2", "run-id": "a"})
    wire.publish("ai-cancel", {"event-id": "e3", "run-id": "b", "input-codec-message-id": "u1"})
    say(wire, "u1", "part one", "part two")
    tree = reader_of(wire).tree
    found = [
        cancel.header("event-id") for cancel in tree.requests.cancels(run_id="a", input_id="u1")
    ]
    assert found == ["e1", "e2"]
    assert tree.requests.cancels(run_id="c") == []
    trigger = tree.requests.trigger("event-u1")
    assert trigger is not None
    assert (trigger.data, tree.requests.trigger("e1")) == ("part one", None)
    backwards = SessionReader(UiMessageCodec())
    backwards.load([parse_message(line) for line in wire.lines[::-1]], more=False)
    assert backwards.tree.requests.trigger("event-u1") == trigger


def test_a_replacement_that_was_itself_left_gives_way() -> None:
    wire = Wire()
    first = turn(wire, "a", say(wire, "u1", "ask"), "one", "two")
    asked = regenerate(wire, first.messages[1], first.messages[0])
    left = Run(wire, "left", asked)
    left.start()
    left.step().text("other")
    fork_with_result(wire, left, first.messages[0], "c", [])
    assert shown(reader_of(wire).view) == ["ask", "one", "two"]


def asked_of(
    reader: SessionReader, anchor: str, run_id: str = "", regenerates: str | None = None
) -> list[str]:
    messages = prompt(reader.tree, anchor, run_id=run_id, regenerates=regenerates)
    return [message.message["parts"][-1]["text"] for message in messages]


def test_an_agent_is_asked_without_what_came_to_no_answer() -> None:
    wire = Wire()
    first = turn(wire, "a", say(wire, "u1", "ask"), "one", "two")
    second = Run(wire, "b", say(wire, "u2", "never mind", parent=first.messages[1]))
    second.start()
    second.step().text("half")
    second.end("cancelled")
    say(wire, "u3", "again", parent=second.messages[0])
    reader = reader_of(wire)
    assert asked_of(reader, "u3") == ["ask", "one", "two", "again"]
    target = first.messages[1]
    assert asked_of(reader, first.messages[0], regenerates=target) == ["ask", "one"]
    assert asked_of(reader, second.messages[0], "b") == ["ask", "one", "two", "never mind", "half"]
    assert asked_of(reader, "nowhere") == []


@pytest.mark.parametrize("end", ["complete", "cancelled", "error"])
def test_an_answer_is_given_anew_from_a_message_on_with_what_was_whole_before(end: str) -> None:
    wire = Wire()
    run = Run(wire, "a", say(wire, "u1", "ask"))
    run.start()
    for text, how in (("one", "complete"), ("two", end if end == "complete" else "failed")):
        step = run.step()
        step.text(text)
        step.end(how)
    for text in ("three", "four"):
        run.step().text(text)
    run.end(end)
    one, two, three, _ = run.messages
    again = regenerate(wire, three, two)
    whole = ["ask", "one", "two"] if end == "complete" else ["ask", "one"]
    assert asked_of(reader_of(wire), two, regenerates=three) == whole
    assert asked_of(reader_of(wire), one, regenerates=two) == ["ask", "one"]
    other = turn(wire, "b", again, "3")
    say(wire, "u2", "more", parent=other.messages[0])
    assert asked_of(reader_of(wire), "u2") == [*whole, "3", "more"]
    third = regenerate(wire, other.messages[0], two)
    assert asked_of(reader_of(wire), two, regenerates=other.messages[0]) == whole
    left = Run(wire, "c", third)
    left.start()
    left.step().text("half")
    left.end("cancelled")
    say(wire, "u3", "then", parent=left.messages[0])
    assert asked_of(reader_of(wire), "u3") == (
        ["ask", "one", "two", "then"] if end == "complete" else ["then"]
    )


def test_a_call_that_came_to_nothing_is_not_asked_about_again() -> None:
    wire = Wire()
    run = Run(wire, "a", say(wire, "u1", "ask"))
    run.start()
    for name in ("c1", "c2"):
        step = run.step()
        step.call(name, "look", "{}")
        if name == "c1":
            step.output("tool-output-available", {"output": 1}, toolCallId=name)
        step.end()
    run.step().text("so")
    run.end("error")
    one, two, three = run.messages
    messages = prompt(reader_of(wire).tree, two, regenerates=three)
    assert [message.codec_message_id for message in messages] == ["u1", one]


@pytest.mark.parametrize("end", ["", "complete", "cancelled", "error"])
@pytest.mark.parametrize("again", [False, True])
def test_an_input_that_came_to_nothing_is_left_out(end: str, again: bool) -> None:
    wire = Wire()
    turn(wire, "a", asked := say(wire, "u1", "ask"), "one")
    last = "a-m1"
    runs = [Run(wire, "b", say(wire, "u2", "never mind", parent=last))]
    if again:
        runs.append(Run(wire, "b.2", runs[0].trigger))
    for run in runs if end else ():
        run.start()
        run.end(end if run is runs[-1] else "error")
    say(wire, "u3", "again", parent="u2")
    kept = ["never mind"] if end in ("", "complete") else []
    assert asked_of(reader_of(wire), "u3") == ["ask", "one", *kept, "again"]
    assert asked_of(reader_of(wire), "u2") == ["ask", "one", "never mind"]
    assert asked["id"] == "u1"


def test_a_run_that_is_begun_again_answers_what_the_first_one_began_with() -> None:
    wire = Wire()
    left = Run(wire, "left", say(wire, "u1", "ask"))
    left.start()
    left.step().text("before")
    left.event("ai-run-suspend")
    seed = [{"id": "d", "role": "assistant", "parts": [{"type": "text", "text": "seed"}]}]
    trigger = fork_with_result(wire, left, "u1", "c", seed)
    first = Run(wire, "r", trigger)
    first.start()
    first.step().text("half")
    first.end("error")
    again = Run(wire, "r.2", trigger)
    again.start()
    again.step().text("more")
    tree = reader_of(wire).tree
    for run_id in ("r", "r.2"):
        found = question(tree, trigger["id"], run_id=run_id)
        assert [one.message["parts"][-1]["text"] for one in found] == ["ask", "seed"]


def test_steering_that_nobody_took_up_is_what_an_agent_is_asked_last() -> None:
    wire = Wire()
    run = Run(wire, "a", say(wire, "u1", "ask"))
    run.start()
    run.step().text("one")
    say(wire, "steer", "mind this", **{"run-id": "a"})
    run.step().text("two")
    reader = reader_of(wire)
    assert asked_of(reader, "u1", "a") == ["ask", "one", "two", "mind this"]
    later = run.step()
    later.output("data-x", 1)
    stamped = wire.lines[-1]["extras"]["ai"]["transport"]
    stamped["steer-codec-message-ids"] = '["steer"]'
    reader.receive(parse_message(wire.lines[-1]))
    (node,) = [node for node in reader.tree.nodes if node.key == "a"]
    ids = [message.codec_message_id for message in prompt(reader.tree, "u1", run_id="a")]
    assert ids == ["u1", *(message.codec_message_id for message in node.messages())]
