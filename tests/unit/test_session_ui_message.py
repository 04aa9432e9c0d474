"""UI messages: every chunk and input as it reads from the wire, and what they add up to."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.session.codec import UiMessageCodec
from perdure.session.codec.port import Input, Output
from perdure.session.message import parse_message
from perdure.session.tree import Tree
from tests.conformance.session.conversation import Run, Step, Wire, answer, say


def chunks(kind: str, data: Any = "", *, streamed: str = "", **codec: str) -> list[Any]:
    stream = {"stream": "true", "status": streamed} if streamed else {"stream": "false"}
    transport = {"codec-message-id": "m", "run-id": "r", **stream}
    message = parse_message(
        {
            "serial": "s",
            "name": "ai-output",
            "data": data,
            "extras": {"ai": {"transport": transport, "codec": {"kind": kind, **codec}}},
        }
    )
    events = UiMessageCodec().decode(message)
    assert events is not None
    return [event.chunk for event in events if isinstance(event, Output)]


TOOL = {"toolCallId": "c", "toolName": "t"}
META = {"providerMetadata": '{"p":{}}'}


@pytest.mark.parametrize(
    ("kind", "data", "codec", "wanted"),
    [
        (
            "start",
            "",
            {"messageId": "i", "messageMetadata": "[1]"},
            {"messageId": "i", "messageMetadata": [1]},
        ),
        ("start", "", {"messageMetadata": "{broken"}, {}),
        ("finish", "", {"finishReason": "length"}, {"finishReason": "length"}),
        ("finish", "", {"finishReason": "odd"}, {"finishReason": "stop"}),
        ("start-step", "", {}, {}),
        ("finish-step", "", {}, {}),
        ("message-metadata", "", {"messageMetadata": '"m"'}, {"messageMetadata": "m"}),
        ("error", "why", {}, {"errorText": "why"}),
        ("abort", "user", {}, {"reason": "user"}),
        ("abort", "", {}, {}),
        (
            "file",
            "u",
            {"mediaType": "a/b", **META},
            {"url": "u", "mediaType": "a/b", "providerMetadata": {"p": {}}},
        ),
        (
            "source-url",
            "u",
            {"sourceId": "s", "title": "T"},
            {"url": "u", "sourceId": "s", "title": "T"},
        ),
        (
            "source-document",
            "",
            {"sourceId": "s", "filename": "f"},
            {"sourceId": "s", "filename": "f"},
        ),
        (
            "data-x",
            {"a": 1},
            {"id": "i", "transient": "true"},
            {"data": {"a": 1}, "id": "i", "transient": True},
        ),
        (
            "tool-input-error",
            {"errorText": "e", "input": 1},
            TOOL,
            {**TOOL, "errorText": "e", "input": 1},
        ),
        (
            "tool-output-available",
            {"output": None},
            {**TOOL, "preliminary": "yes"},
            {"toolCallId": "c", "output": None, "preliminary": False},
        ),
        (
            "tool-output-error",
            {"errorText": "e"},
            {**TOOL, "dynamic": "true"},
            {"toolCallId": "c", "dynamic": True, "errorText": "e"},
        ),
        ("tool-output-denied", "", TOOL, {"toolCallId": "c"}),
        (
            "tool-approval-request",
            "",
            {**TOOL, "approvalId": "a"},
            {"toolCallId": "c", "approvalId": "a"},
        ),
    ],
)
def test_a_discrete_chunk(
    kind: str, data: Any, codec: dict[str, str], wanted: dict[str, Any]
) -> None:
    assert chunks(kind, data, **codec) == [{"type": kind, **wanted}]


@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_a_stream_of_text(kind: str) -> None:
    start, end = {"type": f"{kind}-start", "id": "t"}, {"type": f"{kind}-end", "id": "t"}
    delta = {"type": f"{kind}-delta", "id": "t", "delta": "so far"}
    assert chunks(kind, "", streamed="streaming", id="t") == [start]
    assert chunks(kind, "so far", streamed="cancelled", id="t") == [start, delta]
    assert chunks(kind, "so far", streamed="complete", id="t") == [start, delta, end]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('{"a":1}', {"input": {"a": 1}}),
        ("{oops", {"input": "{oops"}),
        ("", {}),
        ("null", {"input": None}),
    ],
)
def test_the_input_of_a_tool(text: str, given: dict[str, Any]) -> None:
    found = chunks("tool-input", text, streamed="complete", title="T", dynamic="true", **TOOL)
    assert found[0] == {"type": "tool-input-start", "title": "T", "dynamic": True, **TOOL}
    assert found[-1] == {"type": "tool-input-available", **TOOL, **given}
    whole = chunks("tool-input", {"a": 1}, **TOOL)
    assert whole == [
        {"type": "tool-input-start", **TOOL},
        {"type": "tool-input-available", **TOOL, "input": {"a": 1}},
    ]


@pytest.mark.parametrize("kind", ["mystery", "", "text"])
def test_what_is_not_known_reads_as_nothing(kind: str) -> None:
    assert chunks(kind, "data") == []
    assert chunks("mystery", "data", streamed="complete") == []


def parts(wire: Wire, run: Run) -> list[Any]:
    tree = Tree(UiMessageCodec())
    for line in wire.lines:
        tree.apply(parse_message(line))
    node = tree.run(run.run_id)
    assert node is not None
    return [part for message in node.messages() for part in message.message["parts"]]


def call_states(*acts: str) -> list[Any]:
    """Return the part of a call after each thing that happens to it."""
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    run.start()
    step = run.step()
    step.output("start-step")
    found: list[Any] = []
    for act in acts:
        _happen(act, wire, run, step)
        found.append(parts(wire, run)[-1])
    return found


def _happen(act: str, wire: Wire, run: Run, step: Step) -> None:
    match act.split():
        case ["input"]:
            step.output("tool-input", {"a": 1}, title="T", providerExecuted="true", **TOOL)
        case ["ask"]:
            step.output("tool-approval-request", toolCallId="c", approvalId="q")
        case ["answer", approved]:
            answer(wire, run, step.message, "c", approved)
        case ["output", *preliminary]:
            flag = {"preliminary": "true"} if preliminary else {}
            step.output("tool-output-available", {"output": [1]}, toolCallId="c", **flag)
        case ["error", kind]:
            step.output(kind, {"errorText": "e"}, **TOOL)
        case _:
            step.output("tool-output-denied", toolCallId="c")


def test_the_states_of_a_call_keep_its_identity_and_input_and_drop_the_rest() -> None:
    call = {"type": "tool-t", "toolCallId": "c", "title": "T", "providerExecuted": True}
    known = {**call, "input": {"a": 1}}
    assert call_states("input", "ask", "answer true", "output more", "output") == [
        {**known, "state": "input-available"},
        {**known, "state": "approval-requested", "approval": {"id": "q"}},
        {**known, "state": "approval-responded", "approval": {"id": "q", "approved": True}},
        {**known, "state": "output-available", "output": [1], "preliminary": True},
        {**known, "state": "output-available", "output": [1]},
    ]
    refused = {**known, "state": "output-denied", "approval": {"id": "", "approved": False}}
    assert call_states("input", "ask", "answer false")[-1] == refused
    assert call_states("input", "deny")[-1] == refused
    failed = {"state": "output-error", "errorText": "e"}
    assert call_states("input", "error tool-output-error")[-1] == {**known, **failed}
    assert call_states("input", "error tool-input-error")[-1] == {**call, **failed}
    assert call_states("error tool-input-error")[-1] == {
        "type": "tool-t",
        "toolCallId": "c",
        **failed,
    }


def test_an_answer_that_comes_before_its_call_waits_for_it() -> None:
    assert call_states("answer true", "input")[-1]["state"] == "input-available"
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    answer(wire, run, "r-m1", "c")
    step = run.step()
    step.output("data-x", 1)
    step.output("tool-input-error", {"errorText": "e"}, **TOOL)
    assert parts(wire, run)[-1]["state"] == "approval-responded"


def test_the_input_of_a_call_shows_as_soon_as_it_is_json() -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    step = run.step()
    serial = step.output("tool-input", stream="c", **TOOL)
    found: list[Any] = []
    for fragment in ('{"a":{', "}", "}", " ", "!"):
        wire.append(serial, fragment)
        found.append(parts(wire, run)[-1].get("input", "none"))
    assert found == ["none", "none", {"a": {}}, {"a": {}}, "none"]


def test_a_stream_that_only_has_text_is_repaired_once_in_each_step() -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    step = run.step()
    step.text("a")
    step.text("b", stream="t2")
    step.output("finish-step")
    step.text("c")
    assert [part["type"] for part in parts(wire, run)] == [
        "step-start",
        "text",
        "text",
        "step-start",
        "text",
    ]


def test_parts_of_data_are_put_in_the_place_of_those_with_their_id() -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    step = run.step()
    for value, codec in ((1, {"id": "i"}), (2, {}), (3, {"id": "i"}), (4, {"transient": "true"})):
        step.output("data-x", value, **codec)
    assert parts(wire, run) == [
        {"type": "data-x", "id": "i", "data": 3},
        {"type": "data-x", "data": 2},
    ]


def test_chunks_that_say_nothing_begin_no_message() -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    step = run.step()
    for kind in ("error", "abort", "finish", "finish-step", "tool-output-available"):
        step.output(kind, "why")
    tree = Tree(UiMessageCodec())
    for line in wire.lines:
        tree.apply(parse_message(line))
    node = tree.run("r")
    assert node is not None
    assert list(node.messages()) == []


def test_what_a_fork_begins_with_is_read_without_what_is_malformed() -> None:
    good = {
        "id": "d",
        "role": "assistant",
        "parts": [{"type": "text", "text": "x"}, 5, {"type": 1}],
    }
    seed = [
        {"codecMessageId": "f", "message": good},
        {"codecMessageId": "", "message": good},
        {"codecMessageId": "g", "message": {**good, "role": "root"}},
        {"codecMessageId": "h", "message": {"id": "d"}},
        "nothing",
    ]
    message = parse_message(
        {
            "serial": "s",
            "name": "ai-input",
            "data": {"output": 1, "forkSeed": {"messages": seed}},
            "extras": {
                "ai": {
                    "transport": {"codec-message-id": "f", "role": "assistant"},
                    "codec": {"kind": "tool-result", "toolCallId": "c"},
                }
            },
        }
    )
    kept = {"codecMessageId": "f", "message": {**good, "parts": good["parts"][:1]}}
    payload = {"toolCallId": "c", "output": 1, "seed": [kept]}
    assert UiMessageCodec().decode(message) == [Input("f", "tool-result", payload, "assistant")]


def test_a_message_that_was_not_announced_takes_its_id_from_its_first_stream() -> None:
    wire = Wire()
    run = Run(wire, "r", say(wire, "u1", "hi"))
    run.step().output("text", stream="t", id="t", messageId="dom")
    tree = Tree(UiMessageCodec())
    for line in wire.lines:
        tree.apply(parse_message(line))
    node = tree.run("r")
    assert node is not None
    assert [message.message["id"] for message in node.messages()] == ["dom"]
