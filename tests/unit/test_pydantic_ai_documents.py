from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from perdure.adapters.pydantic_ai.conversation import Conversation, slim
from perdure.adapters.pydantic_ai.document import jsonable
from perdure.adapters.pydantic_ai.place import name_of
from perdure.adapters.pydantic_ai.times import Times
from perdure.canonical import encode
from perdure.errors import InvalidPayload

THEN = datetime(2024, 1, 1, tzinfo=UTC)


class Order(BaseModel):
    tags: set[str]
    at: datetime = THEN


@dataclass
class Basket:
    orders: list[Order]
    seen: frozenset[tuple[int, str]]


def question(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)], run_id="r", conversation_id="c")


# --- values --------------------------------------------------------------------------------------


def test_sets_anywhere_in_arguments_are_written_in_one_order() -> None:
    letters = [chr(code) for code in range(97, 123)]
    basket = Basket([Order(tags={*letters})], frozenset((n, "x") for n in range(20)))
    written = jsonable({"basket": basket, "ids": {3, 1, 2}}, "arguments")
    assert written["basket"]["orders"] == [{"tags": letters, "at": "2024-01-01T00:00:00Z"}]
    assert [number for number, _ in written["basket"]["seen"]] == sorted(range(20), key=str)
    assert written["ids"] == [1, 2, 3]


def test_shared_objects_make_no_difference() -> None:
    shared = {"a": [1]}
    assert encode(jsonable([shared, shared], "x")) == encode(
        jsonable([{"a": [1]}, {"a": [1]}], "x")
    )


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, object(), {"x": lambda: 0}])
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(InvalidPayload):
        encode(jsonable(value, "arguments"), what="arguments")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop__model.request", "shop__model.request"),
        ("<agent>.call_tool:pay", "agent.call_tool.pay"),
        ("a b", "a_b-c8687a08"),
        ("ü", "_-607474ca"),
        ("x" * 30, f"{'x' * 15}-666a596d"),
    ],
)
def test_names_become_identifiers_and_those_that_had_to_change_stay_apart(
    text: str, name: str
) -> None:
    assert name_of(text) == name


# --- conversations -------------------------------------------------------------------------------


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one() -> None:
    conversation = Conversation()
    messages: list[Any] = [question("one"), ModelResponse([TextPart("two")]), question("three")]
    documents = [conversation.document(b'{"model":1,', messages[:n]) for n in range(4)]
    for shorter, longer in itertools.pairwise(documents):
        assert longer.data.startswith(shorter.data[: shorter.cuts[-1]])
        assert longer.cuts[:-1] == shorter.cuts
    parts = [
        message["parts"][0]["content"] for message in json.loads(documents[3].data)["messages"]
    ]
    assert parts == ["one", "two", "three"]
    assert json.loads(documents[0].data) == {"model": 1, "messages": []}


def test_who_asked_and_when_is_not_part_of_the_question() -> None:
    first, second = question("same"), question("same")
    second.run_id, second.timestamp = "other", THEN
    response = ModelResponse([ThinkingPart("hm")], usage=RequestUsage(input_tokens=9))
    again = ModelResponse([ThinkingPart("hm")], timestamp=THEN)
    written = {Conversation().document(b"{", m).data for m in ([first, response], [second, again])}
    assert len(written) == 1


def test_a_message_that_was_changed_in_place_is_written_anew() -> None:
    message = question("before")
    conversation = Conversation()
    seen = [conversation.document(b"{", [message]).data]

    part = message.parts[0]
    assert isinstance(part, UserPromptPart)
    part.content = "after"
    seen.append(conversation.document(b"{", [message]).data)

    assert isinstance(message.parts, list)
    message.parts.append(UserPromptPart("more"))
    seen.append(conversation.document(b"{", [message]).data)

    message.parts = [UserPromptPart("else")]
    seen.append(conversation.document(b"{", [message]).data)
    message.parts.append(UserPromptPart("and"))
    seen.append(conversation.document(b"{", [message]).data)
    assert seen[-1] == Conversation().document(b"{", [message]).data
    assert len({*seen}) == 5


def test_a_response_without_what_is_absent_reads_as_the_whole_one() -> None:
    response = ModelResponse(
        [
            TextPart("hi", provider_name="p", provider_details={"a": None}),
            ThinkingPart("hm", signature="s"),
            ToolCallPart("pay", {"amount": None}, "call-1"),
        ],
        usage=RequestUsage(input_tokens=3, details={"x": 1}),
        finish_reason="stop",
        timestamp=THEN,
    )
    adapter = TypeAdapter(ModelResponse)
    whole = adapter.dump_python(response, mode="json")
    assert adapter.validate_python(slim(whole)) == response
    assert len(encode(slim(whole))) < len(encode(whole)) / 2


def test_nothing_in_a_response_means_something_else_when_it_is_absent() -> None:
    # Each union member hides behind annotations; those that are classes are its parts.
    todo, parts = [ModelResponsePart], [ModelResponse]
    while todo:
        item: Any = todo.pop()
        todo += get_args(item)
        if is_dataclass(item) and isinstance(item, type):
            parts.append(item)
    assert {TextPart, ToolCallPart} < {*parts}
    for part in parts:
        for field in fields(part):
            optional = "None" in str(field.type)
            assert not optional or field.default is None, f"{part.__name__}.{field.name}"


# --- times ---------------------------------------------------------------------------------------


def test_times_that_the_journal_does_not_know_are_replaced() -> None:
    old = ModelRequest([UserPromptPart("old", timestamp=THEN)], timestamp=THEN)
    times = Times(THEN.timestamp() + 10, [old])
    response = ModelResponse([TextPart("x")], timestamp=datetime(2024, 1, 2, tzinfo=UTC))
    times.learn(response)
    times.learn_return("call-1", response.timestamp.timestamp() + 5)
    returned = ToolReturnPart("pay", "ok", "call-1")
    prompt = UserPromptPart("and then?")
    request = ModelRequest([returned, prompt], timestamp=datetime.now(UTC))
    made_here = ModelResponse([TextPart("from a cache")])
    messages = [old, question("now"), response, request, made_here]
    times.settle(messages)
    assert old.timestamp == THEN
    start = datetime(2024, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert [part.timestamp for part in messages[1].parts] == [start]  # type: ignore[union-attr]
    after_tool = datetime(2024, 1, 2, 0, 0, 5, tzinfo=UTC)
    assert returned.timestamp == prompt.timestamp == request.timestamp == after_tool
    assert made_here.timestamp == response.timestamp


def test_binary_content_is_written_whole() -> None:
    picture = BinaryContent(b"\xff\x00", media_type="image/png")
    message = ModelRequest([UserPromptPart(["look", picture])])
    data = Conversation().document(b"{", [message]).data
    (read,) = ModelMessagesTypeAdapter.validate_python(json.loads(data)["messages"])
    assert isinstance(read.parts[0], UserPromptPart)
    text, read_picture = read.parts[0].content
    assert text == "look"
    assert isinstance(read_picture, BinaryContent)
    assert read_picture.data == picture.data
