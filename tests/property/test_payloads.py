"""Whatever a payload document can say comes back from it, and is written with the same bytes."""

from __future__ import annotations

import base64
import enum
import json
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType

from perdure.journal import payloads
from perdure.journal.payloads.exact import U64_LIMIT, OneOf
from perdure.journal.payloads.media import Media, MediaSource

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
).filter(lambda value: "Infinity" not in json.dumps(value))
json_objects = st.dictionaries(text | st.just("value"), json_values, max_size=2)
identifiers = st.text("aZ09._-", min_size=1, max_size=128)
raw_objects = json_objects.map(lambda value: Raw(json.dumps(value).encode()))
json_texts = json_values.map(json.dumps)
object_texts = json_objects.map(json.dumps)

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: st.integers(0, U64_LIMIT),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    Raw: raw_objects,
    UnsetType: st.just(UNSET),
    type(None): st.none(),
}
# Members with rules that their types do not say.
SPECIAL: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("McpRequest", "params_json"): json_texts,
    ("McpRequest", "capabilities_json"): json_texts,
    ("McpRequest", "method"): text.filter(bool),
    ("McpRequest", "max_round_trips"): st.integers(1, U64_LIMIT),
    ("McpRequest", "headers"): st.just((payloads.Header("x-a", "1"),)),
    ("McpResponse", "result_json"): json_texts,
    ("McpResponse", "events_json"): st.tuples(json_texts),
    ("EventRequest", "event_json"): object_texts,
    ("RetryRequest", "error_name"): identifiers,
    ("ApprovalRequest", "arguments_json"): object_texts,
    ("ApprovalRequest", "execution"): st.sampled_from(list(payloads.Execution)[1:]),
    ("ApprovalResponse", "decision"): st.builds(
        payloads.Decision, text.filter(bool), st.sampled_from(payloads.DecisionAction)
    ),
    ("CallProvider", "provider_details"): json_values.map(lambda v: Raw(json.dumps(v).encode())),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for what an annotation of a payload allows."""
    if get_origin(hint) is Annotated:
        inner, meta = get_args(hint)
        largest = U64_LIMIT if meta.le is None else meta.le
        return st.integers(meta.ge, largest) if inner is int else values(inner)
    if get_origin(hint) in {Union, types.UnionType}:
        return st.one_of([values(each) for each in get_args(hint)])
    if get_origin(hint) is tuple:
        return st.lists(st.deferred(lambda: values(get_args(hint)[0])), max_size=2).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return LEAVES[hint]


@st.composite
def structs(draw: st.DrawFn, kind: type[msgspec.Struct]) -> Any:
    infos = msgspec.structs.fields(kind)
    if issubclass(kind, OneOf):
        one = draw(st.sampled_from(infos))
        (hint,) = [each for each in get_args(one.type) if each is not UnsetType]
        return kind(**{one.name: draw(values(hint))})
    members = {
        info.name: draw(SPECIAL.get((kind.__name__, info.name), values(info.type)))
        for info in infos
    }
    if members.get("provider_name", "") is UNSET:
        members |= {name: UNSET for name in ("id", "provider_details") if name in members}
    if issubclass(kind, Media):
        members |= draw(sources)
    return kind(**members)


sources: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.binary(max_size=4).map(
        lambda data: {"source": MediaSource.BYTES, "data": base64.b64encode(data).decode()}
    ),
    text.map(lambda url: {"source": MediaSource.URL, "url": url}),
    text.map(lambda file: {"source": MediaSource.PROVIDER_FILE, "file_id": file}),
    structs(payloads.UploadedFile).map(
        lambda file: {"source": MediaSource.UPLOADED_FILE, "uploaded_file": file}
    ),
)
users = structs(payloads.RequestMessage)
SPECIAL["RequestMessage", "parts"] = st.lists(
    values(payloads.RequestPart).filter(
        lambda part: getattr(part, "speaker", "user") == payloads.Speaker.USER
    ),
    max_size=2,
).map(tuple)
SPECIAL["ResponseMessage", "parts"] = st.lists(
    values(payloads.ResponsePart).filter(
        lambda part: getattr(part, "speaker", "assistant") == payloads.Speaker.ASSISTANT
    ),
    max_size=2,
).map(tuple)


def about_its_call(request: payloads.ApprovalRequest) -> payloads.ApprovalRequest:
    call = msgspec.structs.replace(request.call, id="c", name="n")
    proposed = msgspec.structs.replace(request.proposed, call_id="c")
    return msgspec.structs.replace(request, call=call, proposed=proposed)


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "model_request": structs(payloads.ModelRequest),
    "model_response": structs(payloads.ResponseMessage),
    "tool_request": structs(payloads.ToolRequest),
    "tool_response": structs(payloads.ToolResponse),
    "mcp_request": structs(payloads.McpRequest),
    "mcp_response": structs(payloads.McpResponse),
    "event_request": structs(payloads.EventRequest),
    "retry_request": structs(payloads.RetryRequest),
    "approval_request": structs(payloads.ApprovalRequest).map(about_its_call),
    "approval_response": structs(payloads.ApprovalResponse),
    "paused_state": structs(payloads.PausedState),
    "resume_decisions": structs(payloads.ResumeDecisions),
    "history": st.lists(values(payloads.Message), max_size=2).map(tuple),
}


def settled(kind: str, value: Any) -> Any:
    """Bytes that are text are the text."""
    if kind != "tool_response" or isinstance(value.content, str):
        return value
    try:
        return msgspec.structs.replace(value, content=value.content.decode())
    except UnicodeDecodeError:
        return value


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_comes_back_from_its_document(kind: str) -> None:
    encode: Callable[[Any], bytes] = getattr(payloads, f"encode_{kind}")
    parse: Callable[[bytes], Any] = getattr(payloads, f"parse_{kind}")

    @given(KINDS[kind])
    def check(value: Any) -> None:
        data = encode(value)
        json.loads(data)
        again = parse(data)
        assert again == settled(kind, value)
        assert encode(again) == data

    check()
