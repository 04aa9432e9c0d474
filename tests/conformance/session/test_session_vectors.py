"""Recorded sessions are read alike from every point, in pages of any size and in any order."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perdure.session.codec import TextCodec, UiMessageCodec
from perdure.session.input_node import InputNode
from perdure.session.prompt import prompt
from perdure.session.tree import Node, Tree
from perdure.session.view import View
from perdure.testing.session_oracle import Recording, main, read_at, view_document
from tests.conformance.session.orders import shuffled

VECTORS = Path(__file__).parents[2] / "vectors" / "session"
NAMES = sorted(path.name.split(".")[0] for path in VECTORS.glob("*.wire.jsonl"))
PAGES = (1, 2, 3, 5, 8, 13, 100)

# Who is there when somebody else edits a message stays with the one that was edited.
PRESENT_AT_EDIT = {"edit-fork": range(13)}


def text_of(name: str) -> str:
    return (VECTORS / f"{name}.wire.jsonl").read_text("utf-8")


def recording(name: str) -> Recording:
    return Recording.read(text_of(name))


def expected(name: str, reader: str = "cold") -> dict[str, Any]:
    return json.loads((VECTORS / f"{name}.expected.json").read_text("utf-8"))[reader]


def plain(document: object) -> Any:
    return json.loads(json.dumps(document))


def view_at(name: str, joined: int | None, page: int) -> Any:
    view = read_at(recording(name), UiMessageCodec(), joined=joined, page=page)
    return plain(view_document(view))


@pytest.mark.parametrize("name", NAMES)
def test_every_join_point_and_page_size_shows_the_same(name: str) -> None:
    for joined in range(len(recording(name).deliveries) + 1):
        present = joined in PRESENT_AT_EDIT.get(name, ())
        wanted = expected(name, "observer" if present else "cold")["view"]
        for page in PAGES:
            assert view_at(name, joined, page) == wanted, (joined, page)


@pytest.mark.parametrize("name", NAMES)
def test_any_order_gives_the_nodes_of_the_vector_hidden_branches_included(name: str) -> None:
    deliveries = recording(name).deliveries
    for seed in range(20):
        tree = Tree(UiMessageCodec())
        for delivery in shuffled(deliveries, Random(seed)):
            tree.apply(delivery)
        assert plain(view_document(View(tree))) == expected(name)["view"], seed
        wanted = {
            node.get("runId") or node["codecMessageId"]: node for node in expected(name)["nodes"]
        }
        assert {node.key: plain(document(node)) for node in tree.nodes} == wanted, seed


def document(node: Node) -> dict[str, Any]:
    messages = [
        {"codecMessageId": m.codec_message_id, "message": m.message} for m in node.messages()
    ]
    if isinstance(node, InputNode):
        found = {
            "kind": "input",
            "codecMessageId": node.key,
            "parentCodecMessageId": node.parent,
            "forkOf": node.fork_of,
            "serial": node.serial,
            "messages": messages,
        }
    else:
        info = node.info
        fault = info.lifecycle.fault
        found = {
            "kind": "run",
            "runId": node.key,
            "parentCodecMessageId": info.parent,
            "forkOf": info.fork_of,
            "regeneratesCodecMessageId": info.regenerates,
            "clientId": info.client_id,
            "invocationId": info.invocation_id,
            "status": info.lifecycle.status,
            "error": fault
            and {"code": fault.code, "statusCode": fault.status, "message": fault.message},
            "startSerial": info.start_serial,
            "endSerial": info.lifecycle.end_serial,
            "steps": [
                {
                    "stepId": step.step_id,
                    "status": step.status,
                    "attemptCount": step.attempt_count,
                    "stepClientId": step.step_client_id,
                }
                for step in info.steps
            ],
            "messages": messages,
        }
    return {name: value for name, value in found.items() if value is not None}


def test_a_retry_blanks_the_step_before_it_has_said_anything() -> None:
    said = []
    for count in (8, 9):
        view = read_at(
            Recording(recording("retry-supersede").deliveries[:count]),
            UiMessageCodec(),
            joined=0,
            page=100,
        )
        said.append([message.message["parts"][-1]["text"] for message in view.messages])
    assert said == [["Tell me a story", "Once upon a dea"], ["Tell me a story"]]


def test_an_agent_is_asked_for_what_stands_before_the_message_to_replace() -> None:
    tree = Tree(UiMessageCodec())
    for delivery in recording("regenerate").deliveries[:14]:
        tree.apply(delivery)
    target = "00000000-0000-4000-8000-000000000002"
    asked = prompt(tree, "u1", run_id="run-2", regenerates=target)
    assert [message.codec_message_id for message in asked] == ["u1"]


def test_steering_stands_behind_what_was_under_way_until_it_is_taken_up() -> None:
    tree = Tree(UiMessageCodec())
    for delivery in recording("steer").deliveries[:12]:
        tree.apply(delivery)
    steer = "00000000-0000-4000-8000-000000000003"
    run = tree.run("run-1")
    assert run is not None
    assert run.unanswered == [steer]
    roles = [message.message["role"] for message in prompt(tree, "u1", run_id="run-1")]
    assert roles == ["user", "assistant", "user"]
    for delivery in recording("steer").deliveries[12:]:
        tree.apply(delivery)
    assert run.unanswered == []


def test_the_text_codec_reads_the_same_wire() -> None:
    view = read_at(recording("all-chunks"), TextCodec(), joined=20, page=3)
    assert [message.message["text"] for message in view.messages] == [
        "Look",
        "Hello ünïcode 🚀\n\nsecond step, same stream id",
    ]


def test_the_oracle_prints_the_view(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = VECTORS / "stream-error.wire.jsonl"
    main([str(path), "--join", "3", "--page", "2"])
    monkeypatch.setattr(sys, "argv", ["session_oracle", str(path)])
    monkeypatch.delitem(sys.modules, "perdure.testing.session_oracle")
    runpy.run_module("perdure.testing.session_oracle", run_name="__main__")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [expected("stream-error")["view"]] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"serial":"a"}\n{', "line 2"),
        ("[]", "line 1"),
        ('\n# nothing\n{"serial":"a","name":1}', "line 3"),
        (None, "No such file"),
    ],
    ids=["no json", "no object", "malformed", "missing"],
)
def test_the_oracle_says_what_is_wrong_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = tmp_path / "recorded.jsonl"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(SystemExit):
        main([str(path)])
    assert said in capsys.readouterr().err


def test_a_recording_may_leave_out_actions_and_versions() -> None:
    lines = [json.loads(line) for line in text_of("simple-turn").splitlines()]
    for line in lines:
        del line["action"], line["version"]
    # Lines end at line feeds alone: JSON may hold what else ends one for people.
    lines[0]["clientId"] = "\u2028"
    short = Recording.read("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    view = read_at(short, UiMessageCodec(), joined=8, page=2)
    assert plain(view_document(view)) == expected("simple-turn")["view"]
