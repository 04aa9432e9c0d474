"""What payload documents promise beyond the vectors: values, both spellings, limits, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET, Raw

from perdure.errors import (
    InvalidApprovalRequest,
    InvalidDeferredState,
    InvalidDocument,
    InvalidEventRequest,
    InvalidHistory,
    InvalidMcpRequest,
    InvalidMcpResponse,
    InvalidModelRequest,
    InvalidModelResponse,
    InvalidPayload,
    InvalidRetryRequest,
    InvalidToolRequest,
    InvalidToolResponse,
    JournalError,
    UnsupportedDocument,
    UnsupportedVersion,
)
from perdure.journal import payloads as wire

SAID = wire.RequestMessage(parts=(wire.UserPromptPart(content=wire.TextContent("hello")),))
ANSWERED = wire.ResponseMessage(parts=(wire.TextPart(content="hi"),))
MISTAKEN: dict[str, Any] = {"request": SAID, "response": ANSWERED, "action": "maybe"}


def tool_request(details: str = "null") -> wire.ToolRequest:
    provider = wire.CallProvider(provider_name="p", provider_details=Raw(details.encode()))
    call = wire.ToolCall(id="c", name="n", arguments_json="{}", provider=provider)
    return wire.ToolRequest(call=call, arguments_json="{}", messages=(SAID, ANSWERED))


def approval_request(details: str = "null", **changes: Any) -> wire.ApprovalRequest:
    members: dict[str, Any] = {
        "call": tool_request(details).call,
        "execution": wire.Execution.EXTERNAL,
        "arguments_json": "{}",
        "proposed": wire.Decision("c", wire.DecisionAction.APPROVE),
    }
    return wire.ApprovalRequest(**(members | changes))


MCP = wire.McpRequest(
    method="tools/list", params_json="{}", client_name="client", client_version="1"
)
EVENT = wire.EventRequest(
    source=wire.EventSource.MCP, parent_sequence=1, event_index=0, event_json="{}"
)


def test_messages_are_read_out_of_the_text_that_holds_them() -> None:
    document = json.loads(wire.encode_tool_request(tool_request()))
    assert json.loads(document["messages_json"])["messages"][0]["kind"] == "request"
    assert wire.parse_tool_request(json.dumps(document).encode()).messages == (SAID, ANSWERED)


@pytest.mark.parametrize(
    ("encode", "parse", "value"),
    [
        (wire.encode_tool_request, wire.parse_tool_request, tool_request),
        (wire.encode_approval_request, wire.parse_approval_request, approval_request),
    ],
)
def test_details_of_a_provider_are_read_in_both_spellings(
    encode: Callable[[Any], bytes], parse: Any, value: Callable[[str], Any]
) -> None:
    bare = encode(value('{"k":1.0}'))
    assert b'"provider_details":{"k":1}' in bare
    wrapped = bare.replace(b'{"k":1}', b'{"value": {"k": 1e0}}')
    assert parse(bare) == parse(wrapped) == parse(wrapped, bare_details=False)
    assert encode(parse(wrapped)) == bare
    with pytest.raises(InvalidDocument, match="provider_details"):
        parse(bare, bare_details=False)
    assert parse(encode(value("null")), bare_details=False) == value("null")


def test_details_that_look_wrapped_come_back_as_they_were() -> None:
    request = tool_request('{"value":1}')
    data = wire.encode_tool_request(request)
    assert b'"provider_details":{"value":{"value":1}}' in data
    assert wire.parse_tool_request(data) == request


def test_content_that_is_no_unicode_is_written_as_numbers() -> None:
    data = wire.encode_tool_response(wire.ToolResponse(content=b"\xff\x00"))
    assert b'"content":[255,0]' in data
    assert wire.parse_tool_response(data).content == b"\xff\x00"
    assert b'"content":"hi"' in wire.encode_tool_response(wire.ToolResponse(content=b"hi"))


def test_floats_are_laid_out_and_members_of_settings_stand_in_order() -> None:
    settings = wire.Settings(temperature=1e-7, top_p=1.0, seed=-1)
    data = wire.encode_model_request(wire.ModelRequest(messages=(SAID,), settings=settings))
    assert b'{"temperature":0.0000001,"max_tokens":null,"stop_sequences":null,"seed":-1,' in data
    assert wire.parse_model_request(data).settings == settings


def test_media_carry_their_bytes_and_settle_their_kind() -> None:
    picture = wire.medium(b"\x89PNG", "image/png")
    assert isinstance(picture, wire.Image)
    assert picture.content() == b"\x89PNG"
    page = wire.Media(media_type="text/html", source=wire.MediaSource.URL, url="u", file_id="f")
    assert page.file_id is UNSET
    part = wire.ToolReturnPart(
        tool_call_id="c", tool_name="t", content="", files=(page, picture), is_error=True
    )
    assert part.files == (page.as_kind(wire.Document), picture)
    assert (part.outcome, part.is_error) == (wire.Outcome.FAILED, UNSET)
    with pytest.raises(InvalidPayload, match="does not carry"):
        page.content()


def test_one_of_several_says_which() -> None:
    choice = wire.ToolChoice(allowed=("a",))
    assert (choice.tag, choice.value) == ("allowed", ("a",))


def of_version_1(role: str, part: str) -> bytes:
    return f'{{"version":1,"messages":[{{"role":"{role}","parts":[{part}]}}]}}'.encode()


def test_files_of_a_history_of_version_1_are_kept() -> None:
    medium = '{"type":"audio","source":"url","url":"u","media_type":"audio/wav"}'
    (asked,) = wire.parse_history(of_version_1("user", medium))
    (answered,) = wire.parse_history(of_version_1("assistant", medium))
    audio = wire.Audio(media_type="audio/wav", source=wire.MediaSource.URL, url="u")
    assert asked == wire.RequestMessage(parts=(wire.UserPromptPart(content=audio),))
    assert answered == wire.ResponseMessage(parts=(wire.FilePart(content=audio),))


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("system", '{"type":"image","source":"url","url":"u","media_type":"m"}'),
        ("tool", '{"type":"text","text":"x"}'),
        ("assistant", '{"type":"text"}'),
        ("judge", ""),
    ],
)
def test_what_version_1_did_not_have_is_refused(role: str, part: str) -> None:
    with pytest.raises(InvalidHistory):
        wire.parse_history(of_version_1(role, part))


def history_of(details: str) -> bytes:
    part = f'{{"part_kind":"text","content":"","provider_name":"p","provider_details":{details}}}'
    return f'{{"version":2,"messages":[{{"kind":"response","parts":[{part}]}}]}}'.encode()


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ('{"e":[],"d":' + "[" * 58 + "]" * 58 + "}", '{"d":' + "[" * 59 + "]" * 59 + "}"),
        ('{"d":[' + "0," * 65_535 + "0]}", '{"d":[' + "0," * 65_536 + "0]}"),
        ('{"d":' + "1" * 1_048_576 + "}", '{"d":' + "1" * 1_048_577 + "}"),
        ('{"d":"\\u00e9' + "a" * 1_048_574 + '"}', '{"d":"\\u00e9' + "a" * 1_048_575 + '"}'),
    ],
    ids=["depth", "items", "number", "text"],
)
def test_limits_of_a_history_are_inclusive(within: str, beyond: str) -> None:
    assert len(wire.parse_history(history_of(within))) == 1
    with pytest.raises(InvalidHistory):
        wire.parse_history(history_of(beyond))


def test_a_history_has_a_size_and_is_not_written_beyond_its_limits() -> None:
    empty = b'{"version":2,"messages":[]}'
    assert wire.parse_history(empty.ljust(16 * 1024 * 1024)) == ()
    with pytest.raises(InvalidHistory, match="16777217 bytes"):
        wire.parse_history(empty.ljust(16 * 1024 * 1024 + 1))
    long = wire.ResponseMessage(parts=(wire.TextPart(content="a" * 1_048_577),))
    with pytest.raises(InvalidHistory, match="1048577 bytes"):
        wire.encode_history((long,))
    with pytest.raises(UnsupportedVersion, match="reads versions 1 and 2"):
        wire.parse_history(b'{"version":3,"messages":[1]}')


SPEECH = wire.SpeechPart(speaker=wire.Speaker.ASSISTANT)
CONSTRUCTED: list[Callable[[], Any]] = [
    lambda: wire.TextPart(content="", id="1"),
    lambda: wire.TextPart(content="", provider_name="p", provider_details=Raw(b"[]")),
    lambda: wire.TextPart(content="", provider_name="p", provider_details=Raw(b'{},"x":{}')),
    lambda: wire.ResponseMessage(parts=(), provider_details=Raw(b"null")),
    lambda: wire.RequestMessage(parts=(SPEECH,)),
    lambda: wire.Media(media_type="m", source=wire.MediaSource.URL),
    lambda: wire.Media(media_type="m", source=wire.MediaSource.BYTES, data="iVBORx=="),
    lambda: wire.Settings(temperature=float("nan")),
    lambda: wire.RunUsage(requests=1 << 64),
    wire.Output,
    lambda: wire.Output(text=wire.Empty(), json_object=wire.Empty()),
]


@pytest.mark.parametrize("construct", CONSTRUCTED)
def test_a_value_that_no_reader_accepts_is_not_constructed(construct: Callable[[], Any]) -> None:
    with pytest.raises(InvalidPayload):
        construct()


LARGE = "a" * (2 * 1024 * 1024)
WRITTEN: list[tuple[type[JournalError], Callable[[], Any]]] = [
    (
        InvalidModelRequest,
        lambda: wire.encode_model_request(wire.ModelRequest(messages=(), instructions=(LARGE,))),
    ),
    (
        InvalidModelRequest,
        lambda: wire.encode_model_request(wire.ModelRequest(messages=(), instructions=("\ud800",))),
    ),
    (InvalidModelResponse, lambda: wire.encode_model_response(MISTAKEN["request"])),
    (
        InvalidModelResponse,
        lambda: wire.encode_model_response(
            wire.ResponseMessage(parts=(wire.TextPart(content="a" * 1_000_000),) * 3)
        ),
    ),
    (
        InvalidToolResponse,
        lambda: wire.encode_tool_response(
            wire.ToolResponse(content="", follow_ups=(MISTAKEN["response"],))
        ),
    ),
    (
        InvalidToolRequest,
        lambda: wire.encode_tool_request(
            wire.ToolRequest(call=tool_request().call, arguments_json="", retry_number=-1)
        ),
    ),
    (
        InvalidMcpRequest,
        lambda: wire.encode_mcp_request(
            wire.McpRequest(method="m", params_json=LARGE, client_name="", client_version="")
        ),
    ),
    (
        InvalidMcpResponse,
        lambda: wire.encode_mcp_response(wire.McpResponse(result_json="\ud800")),
    ),
    (
        InvalidEventRequest,
        lambda: wire.encode_event_request(
            wire.EventRequest(
                source=wire.EventSource.MCP,
                parent_sequence=0,
                event_index=0,
                event_json='"\ud800"',
            )
        ),
    ),
    (
        InvalidRetryRequest,
        lambda: wire.encode_retry_request(
            wire.RetryRequest(
                delay_ms=1, retry_number=1, model_requests=1, total_delay_ms=1, error_name=""
            )
        ),
    ),
    (
        InvalidApprovalRequest,
        lambda: wire.encode_approval_request(approval_request(arguments_json="[]")),
    ),
    (
        InvalidDeferredState,
        lambda: wire.encode_resume_decisions(
            wire.ResumeDecisions((wire.Decision("c", MISTAKEN["action"]),))
        ),
    ),
]


@pytest.mark.parametrize(("error", "write"), WRITTEN)
def test_a_document_that_no_reader_accepts_is_not_written(
    error: type[JournalError], write: Callable[[], Any]
) -> None:
    with pytest.raises(error):
        write()


def test_an_older_history_in_a_document_is_brought_up_to_date() -> None:
    document = json.loads(wire.encode_model_request(wire.ModelRequest(messages=())))
    document["messages_json"] = of_version_1("user", '{"type":"text","text":"hello"}').decode()
    assert wire.parse_model_request(json.dumps(document).encode()).messages == (SAID,)
    document["messages_json"] = '{"version":3,"messages":[]}'
    with pytest.raises(InvalidModelRequest, match="version 3"):
        wire.parse_model_request(json.dumps(document).encode())


def test_another_version_is_told_apart_from_another_shape() -> None:
    document = json.loads(wire.encode_mcp_response(wire.McpResponse(result_json="{}")))
    with pytest.raises(UnsupportedDocument, match="version 3 and this release reads version 2"):
        wire.parse_mcp_response(json.dumps(document | {"version": 3, "result_json": "no"}).encode())
    with pytest.raises(InvalidMcpResponse):
        wire.parse_mcp_response(json.dumps(document | {"version": 3, "extra": 1}).encode())
