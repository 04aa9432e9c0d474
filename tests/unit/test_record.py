from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.canonical import INPUT_LIMIT_BYTES, RECORD_LIMIT_BYTES
from perdure.errors import (
    InputDigestMismatch,
    InvalidInvocation,
    InvalidPayload,
    InvalidRecord,
    OperationFailed,
    OperationSuspended,
    PerdureError,
)
from perdure.journal import (
    Failure,
    Invocation,
    OperationKind,
    Outcome,
    Record,
    Success,
    Suspended,
    SuspensionReason,
    encode_invocation,
    encode_record,
    parse_invocation,
    parse_record,
)
from perdure.journal.record import success_of

INVOCATION = Invocation("run-1", "tool.call", 1, OperationKind.TOOL_CALL, "worker", b"{}")


def changed(**members: Any) -> Invocation:
    return msgspec.structs.replace(INVOCATION, **members)


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({"run_id": "a/b"}, InvalidInvocation, "the run id 'a/b'"),
        ({"step_id": ""}, InvalidInvocation, "the step id ''"),
        ({"handler_id": "a b"}, InvalidInvocation, "the handler id 'a b'"),
        ({"sequence": -1}, InvalidInvocation, "the sequence -1"),
        ({"sequence": 2**64}, InvalidInvocation, "the sequence"),
        ({"sequence": True}, InvalidInvocation, "the sequence True"),
        ({"kind": "tool_call"}, InvalidInvocation, "the kind 'tool_call'"),
        ({"input_json": b""}, InvalidPayload, "the input of operation run-1/tool.call/1 is empty"),
        ({"input_json": b"{"}, InvalidPayload, "the input of operation run-1/tool.call/1 is not"),
        ({"input_json": b"1" * (INPUT_LIMIT_BYTES + 1)}, InvalidPayload, "2097153 bytes"),
        ({"handler_id": "", "input_json": b""}, InvalidInvocation, "handler id"),
    ],
)
def test_an_invocation_is_checked_identity_first(
    members: dict[str, Any], error: type[PerdureError], message: str
) -> None:
    with pytest.raises(error, match=message):
        changed(**members).validate()
    with pytest.raises(error, match=message):
        encode_invocation(changed(**members))


def test_an_invocation_of_a_value_is_valid_and_spelled_once() -> None:
    def of(value: object, run_id: str = "run-1") -> Invocation:
        return Invocation.of(run_id, "tool.call", 1, OperationKind.TOOL_CALL, "worker", value)

    assert of({}) == INVOCATION
    assert of({"b": 1, "a": 2}).input_sha256 == of({"a": 2, "b": 1}).input_sha256
    with pytest.raises(InvalidPayload, match="input is a set"):
        of({1})
    with pytest.raises(InvalidInvocation):
        of({1}, run_id="a/b")
    with pytest.raises(InvalidPayload, match="limit"):
        of("x" * INPUT_LIMIT_BYTES)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"run_id":"r"}',
        encode_invocation(INVOCATION).replace(b'"sequence":1', b'"sequence":18446744073709551616'),
        encode_invocation(INVOCATION).replace(b'"sequence":1', b'"sequence":-1'),
        encode_invocation(INVOCATION).replace(b'"sequence":1', b'"sequence":1,"sequence":1'),
        encode_invocation(INVOCATION)[:-1] + b',"extra":1}',
    ],
)
def test_an_invocation_document_of_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInvocation):
        parse_invocation(data)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Success(b""), InvalidPayload),
        (Success(b'{"a":1,"a":1}'), InvalidPayload),
        (Success(b"1" * (RECORD_LIMIT_BYTES + 1)), InvalidPayload),
        (Success(b'"' + b"x" * (RECORD_LIMIT_BYTES - 2) + b'"'), InvalidRecord),
        (Failure("a b"), InvalidRecord),
        (Failure(""), InvalidRecord),
        (Failure("E", data_json=b"{"), InvalidPayload),
        (Suspended(SuspensionReason.APPROVAL, b"nope"), InvalidPayload),
    ],
)
def test_a_record_no_reader_would_accept_is_not_written(
    outcome: Outcome, error: type[PerdureError]
) -> None:
    with pytest.raises(error):
        encode_record(Record(INVOCATION, outcome))


def test_the_wire_carries_only_the_name_and_the_flag_of_a_failure() -> None:
    failure = Failure("E", retryable=True, type_name="m.E", message="boom", data_json=b"[1]")
    assert parse_record(encode_record(Record(INVOCATION, failure))).outcome == Failure("E", True)


def test_a_kept_digest_is_checked_in_either_case() -> None:
    record = Record(INVOCATION, Success(b"1"))
    digest = INVOCATION.input_sha256
    assert encode_record(record, input_sha256=digest.upper()) == encode_record(record)
    with pytest.raises(InputDigestMismatch, match=r"run-1/tool\.call/1"):
        encode_record(record, input_sha256="0" * 64)
    upper = encode_record(record).replace(digest.encode(), digest.upper().encode())
    assert parse_record(upper) == record


def test_success_of_raises_the_other_outcomes() -> None:
    assert success_of("k", Success(b"1")) == Success(b"1")
    failure = Failure("E", retryable=True, type_name="m.E", message="boom", data_json=b'{"a":1}')
    with pytest.raises(OperationFailed, match=r"operation k failed with m\.E: boom") as failed:
        success_of("k", failure)
    assert (failed.value.code, failed.value.retryable, failed.value.data) == ("E", True, {"a": 1})
    with pytest.raises(OperationSuspended, match="approval") as suspended:
        success_of("k", Suspended(SuspensionReason.APPROVAL, b"[]"))
    assert suspended.value.state_json == b"[]"
