"""What is put out is written so that readers have it again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure.errors import InvalidSessionArgument
from perdure.session.codec import Codec, TextCodec, UiMessageCodec
from perdure.session.codec.ui_encoder import UiEncoder
from perdure.session.codec.written import End, Whole
from perdure.session.message import WireMessage
from perdure.session.message_log import MessageLog
from perdure.testing.session_oracle import Recording
from tests.session_agents import ASKED, VECTORS, World, source, text


def piped(*outputs: Any, codec: Codec | None = None) -> World:
    """Pipe outputs into a run, which is left open."""

    async def main() -> World:
        world = World()
        async with asyncio.timeout(60), world.agent(codec=codec) as session:
            await world.say("hi")
            run = session.create_run(ASKED)
            await run.start()
            result = await run.pipe(source(outputs))
            if result.error is not None:
                raise result.error
        return world

    return asyncio.run(main())


def parts(world: World) -> list[dict[str, Any]]:
    return world.seen()["messages"][1]["message"]["parts"]


def recorded_chunks(name: str) -> list[dict[str, Any]]:
    """Return the chunks of a recorded turn, a stream after the other."""
    log = MessageLog()
    found = Recording.read((VECTORS / f"{name}.wire.jsonl").read_text("utf-8")).deliveries
    for delivery in found:
        log.receive(delivery)
    serials = sorted({d.serial for d in found if d.name == "ai-output"})
    every = [message for serial in serials if (message := log.get(serial))]
    every += [delivery for delivery in found if delivery.ephemeral]
    return [e.chunk for m in every for e in UiMessageCodec().decode(m) or ()]  # type: ignore[union-attr]


def test_every_type_of_chunk_comes_back() -> None:
    chunks = recorded_chunks("all-chunks")
    assert len({chunk["type"] for chunk in chunks}) > 20
    world = piped(*chunks)
    expected = json.loads((VECTORS / "all-chunks.expected.json").read_text("utf-8"))
    shown = expected["cold"]["view"]["messages"][1]["message"]
    assert world.seen()["messages"][1]["message"] == shown


TOOL = {"toolCallId": "c", "toolName": "t", "title": "T", "dynamic": True}
PROVIDED = {"providerMetadata": {"p": {"x": [1, None]}}}
CHUNKS: list[dict[str, Any]] = [
    {"type": "start", "messageId": "m", "messageMetadata": {"a": 1}},
    {"type": "start-step"},
    {"type": "finish-step"},
    {"type": "finish", "finishReason": "tool-calls", "messageMetadata": 7},
    {"type": "message-metadata", "messageMetadata": ["x"]},
    {"type": "error", "errorText": "bad"},
    {"type": "abort", "reason": "user"},
    {"type": "abort"},
    {"type": "file", "mediaType": "image/png", "url": "data:,", **PROVIDED},
    {"type": "source-url", "sourceId": "s", "title": "t", "url": "u", **PROVIDED},
    {"type": "source-document", "sourceId": "s", "mediaType": "m", "title": "t", "filename": "f"},
    {"type": "data-x", "id": "d", "data": {"k": None}},
    {"type": "data-x", "data": 1, "transient": True},
    {"type": "tool-input-error", **TOOL, "errorText": "e", "input": "{"},
    {"type": "tool-output-available", "toolCallId": "c", "output": None, "preliminary": False},
    {"type": "tool-output-error", "toolCallId": "c", "errorText": "e", "providerExecuted": True},
    {"type": "tool-output-denied", "toolCallId": "c"},
    {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
]


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: str(chunk["type"]))
def test_a_chunk_that_is_one_message_reads_as_it_was(chunk: dict[str, Any]) -> None:
    (whole,) = UiEncoder("m").encode(chunk)
    assert isinstance(whole, Whole)
    assert whole.ephemeral == chunk.get("transient", False)
    message = WireMessage(
        serial="s",
        version="s",
        name="ai-output",
        data=json.loads(json.dumps(whole.data)),
        transport={"codec-message-id": "m", "stream": "false"},
        codec=whole.fields,
    )
    [event] = UiMessageCodec().decode(message) or []
    assert event.chunk == chunk  # type: ignore[union-attr]


def test_transient_data_are_delivered_and_not_kept() -> None:
    world = piped({"type": "start"}, {"type": "data-x", "data": 1, "transient": True})
    assert world.names()[-2] == "ai-output data-x"
    assert parts(world) == []


@pytest.mark.parametrize(
    ("streamed", "given", "whole"),
    [
        (['{"a":', "1}"], {"a": 1}, None),
        (["{"], "{", None),
        ([], {"a": 1}, '{"a":1}'),
        (["{}"], {"a": 1}, '{"a":1}'),
        (['{"a'], {"a": 1}, '{"a":1}'),
        ([], "text", '"text"'),
        (["null"], None, None),
    ],
    ids=["streamed", "no JSON", "nothing streamed", "another", "cut short", "text", "null"],
)
def test_an_input_is_what_was_given_whatever_was_streamed(
    streamed: list[str], given: Any, whole: str | None
) -> None:
    start = {"type": "tool-input-start", "toolCallId": "c", "toolName": "t"}
    deltas = [
        {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": part} for part in streamed
    ]
    end = {"type": "tool-input-available", "toolCallId": "c", "toolName": "t", "input": given}
    encoder = UiEncoder("m")
    written = [w for chunk in (start, *deltas, end) for w in encoder.encode(chunk)][-1]
    assert isinstance(written, End)
    assert written.whole == whole
    assert parts(piped(start, *deltas, end))[-1]["input"] == given
    # Data that are null are none, and so is an input.
    assert parts(piped(end))[-1].get("input") == given


def test_what_begins_a_message_is_written_even_if_it_was_left_out() -> None:
    world = piped(*text("Hi")[2:], *text("again", stream="t2")[2:5])
    kinds = [name.partition(" ")[2] for name in world.names() if name.startswith("ai-output")]
    assert kinds == [
        *("start", "start-step", "text", "finish-step", "finish"),
        *("start", "start-step", "text"),
    ]
    whole = piped({"type": "tool-input-available", "toolCallId": "c", "toolName": "t", "input": 1})
    assert [part["type"] for part in parts(whole)] == ["step-start", "tool-t"]
    assert "ai-output start-step" in whole.names()
    result = {"type": "tool-output-available", "toolCallId": "c", "output": 1}
    assert piped(result).names()[-2] == "ai-output tool-output-available"
    assert "ai-output start" not in piped(result).names()


def test_streams_that_are_left_open_end_as_broken_off_and_may_be_begun_again() -> None:
    begin = {"type": "text-start", "id": "t"}
    more = {"type": "text-delta", "id": "t", "delta": "x"}
    world = piped(begin, more, begin, more)
    texts = [part["text"] for part in parts(world) if "text" in part]
    assert texts == ["x", "x"]
    ends = [d.header("status") for d in world.log.deliveries if d.data == ""]
    assert ends.count("cancelled") == 2


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        ("text", "no type"),
        ({"kind": "start"}, "no type"),
        ({"type": "reset"}, "'reset' cannot"),
        ({"type": "text-start"}, "which stream"),
        ({"type": "text-delta", "id": "t", "delta": "x"}, "not started"),
        ({"type": "text-end", "id": "t"}, "not started"),
        ({"type": "tool-input-end", "toolCallId": "t"}, "not started"),
        ({"type": "file", "url": "u", "mediaType": 1}, "mediaType"),
        ({"type": "start", "messageMetadata": object()}, "no JSON"),
        ({"type": "data-x", "data": object()}, "no JSON"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "chunk",
)
def test_what_is_no_chunk_is_refused(chunk: Any, says: str) -> None:
    with pytest.raises(InvalidSessionArgument, match=says):
        piped(chunk)


def test_a_delta_without_text_is_refused() -> None:
    with pytest.raises(InvalidSessionArgument, match="has no text"):
        piped({"type": "text-start", "id": "t"}, {"type": "text-delta", "id": "t"})


def test_plain_text_is_read_by_both_codecs() -> None:
    world = piped("Hi", " there", codec=TextCodec())
    assert parts(world) == [{"type": "step-start"}, {"type": "text", "text": "Hi there"}]
    assert world.seen(TextCodec())["messages"][1]["message"]["text"] == "Hi there"
    assert world.names()[-2] == "ai-output finish"
    assert "ai-step-start" not in piped(codec=TextCodec()).names()
    with pytest.raises(InvalidSessionArgument, match="another codec"):
        piped({"type": "start"}, codec=TextCodec())
