from __future__ import annotations

import enum
import re
from typing import Annotated, Final, Literal, TypeAlias, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from perdure.canonical import RECORD_LIMIT_BYTES, check_payload, decode, read_document
from perdure.errors import (
    InputDigestMismatch,
    InvalidRecord,
    OperationFailed,
    OperationSuspended,
    UnsupportedRecordVersion,
)
from perdure.ids import is_identifier
from perdure.journal.invocation import Invocation, InvocationDocument

RECORD_VERSION: Final = 1
"""The version of the record document that this release writes and reads."""


class SuspensionReason(enum.StrEnum):
    """What a suspended operation waits for."""

    APPROVAL = "approval"
    EXTERNAL_TOOL = "external_tool"
    PROVIDER_RESUME = "provider_resume"


class Success(msgspec.Struct, frozen=True):
    """The operation finished; `output_json` is one complete JSON document."""

    output_json: bytes


class Failure(msgspec.Struct, frozen=True):
    """The operation failed for good.

    `error_name` is an identifier and, with `retryable`, all that the wire document carries. The
    other members stay in the local journal: the exception's qualified type name, its message, and
    a JSON document with more, or None.
    """

    error_name: str
    retryable: bool = False
    type_name: str = ""
    message: str = ""
    data_json: bytes | None = None


class Suspended(msgspec.Struct, frozen=True):
    """The operation waits for somebody outside; `state_json` is what its resumption needs."""

    reason: SuspensionReason
    state_json: bytes


Outcome: TypeAlias = Success | Failure | Suspended


class Record(msgspec.Struct, frozen=True):
    """An invocation and the one outcome it had."""

    invocation: Invocation
    outcome: Outcome

    def validate(self) -> None:
        """Check the invocation, then the outcome.

        Raises `InvalidInvocation`, `InvalidPayload` or `InvalidRecord`.
        """
        self.invocation.validate()
        check_outcome(self.invocation.stable_key, self.outcome)


def check_outcome(key: str, outcome: Outcome) -> None:
    """Check the outcome of the operation `key`.

    Raises `InvalidPayload` for its document, `InvalidRecord` for anything else.
    """
    match outcome:
        case Success(output_json=output_json):
            _check_document(output_json, f"the output of operation {key}")
        case Failure(error_name=error_name, data_json=data_json):
            if not is_identifier(error_name):
                raise InvalidRecord(
                    f"the error name {error_name[:200]!r} of operation {key} is not an identifier"
                )
            if data_json is not None:
                _check_document(data_json, f"the failure data of operation {key}")
        case Suspended(state_json=state_json):
            _check_document(state_json, f"the state of operation {key}")
        case _:
            assert_never(outcome)


def _check_document(data: bytes, what: str) -> None:
    check_payload(data, what=what, limit_bytes=RECORD_LIMIT_BYTES)


def success_of(key: str, outcome: Outcome) -> Success:
    """Return an outcome that is a success.

    Raises `OperationFailed` or `OperationSuspended` for the others, equal on every replay.
    """
    match outcome:
        case Success():
            return outcome
        case Failure():
            raise failed_of(key, outcome)
        case Suspended():
            raise OperationSuspended(
                key, reason=outcome.reason.value, state_json=outcome.state_json
            )
        case _:
            assert_never(outcome)


def failed_of(key: str, failure: Failure) -> OperationFailed:
    """Return the error that a failure is raised as."""
    return OperationFailed(
        key,
        code=failure.error_name,
        message=failure.message,
        type_name=failure.type_name,
        retryable=failure.retryable,
        data=None if failure.data_json is None else decode(failure.data_json),
    )


# --- the wire document -----------------------------------------------------------------------


class _RecordDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A record as the wire spells it, in the order in which it is written."""

    version: Annotated[int, msgspec.Meta(ge=0, le=255)]
    invocation: InvocationDocument
    input_sha256: str
    status: Literal["success", "failure", "suspended"]
    output_json: str | UnsetType | None = UNSET
    error_name: str | UnsetType | None = UNSET
    retryable: bool | UnsetType | None = UNSET
    suspension_reason: SuspensionReason | UnsetType | None = UNSET
    state_json: str | UnsetType | None = UNSET


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_RecordDocument)
_is_digest: Final = re.compile(r"[0-9a-fA-F]{64}").fullmatch


def encode_record(record: Record, *, input_sha256: str | None = None) -> bytes:
    """Return the wire document of a record.

    `input_sha256` is the digest in hex that was kept with the record, checked against its input;
    None computes it. A failure's type name, message and data are not part of the document.
    Raises what `parse_record` would raise for the result.
    """
    record.validate()
    invocation = record.invocation
    if input_sha256 is not None:
        _check_digest(invocation, input_sha256)
    data = _encode(
        _with_outcome(
            _RecordDocument(
                RECORD_VERSION,
                InvocationDocument.of(invocation),
                invocation.input_sha256,
                "success",
            ),
            record.outcome,
        )
    )
    _check_size(data)
    return data


def _with_outcome(document: _RecordDocument, outcome: Outcome) -> _RecordDocument:
    match outcome:
        case Success(output_json=output_json):
            document.output_json = output_json.decode()
        case Failure(error_name=error_name, retryable=retryable):
            document.status = "failure"
            document.error_name = error_name
            document.retryable = retryable
        case Suspended(reason=reason, state_json=state_json):
            document.status = "suspended"
            document.suspension_reason = reason
            document.state_json = state_json.decode()
        case _:
            assert_never(outcome)
    return document


def parse_record(data: bytes) -> Record:
    """Return the record of a wire document.

    Raises, in this order: `InvalidRecord` for the size or the shape, `UnsupportedRecordVersion`,
    `InvalidRecord` for the digest's spelling or the members of the status, `InvalidInvocation`,
    `InvalidPayload`, `InvalidRecord` for the error name, `InputDigestMismatch`.
    """
    _check_size(data)
    document = read_document(data, _decoder, what="record", refuse=InvalidRecord)
    if document.version != RECORD_VERSION:
        raise UnsupportedRecordVersion(
            f"the record has version {document.version} and this release reads version"
            f" {RECORD_VERSION}: upgrade perdure where it is read"
        )
    if not _is_digest(document.input_sha256):
        raise InvalidRecord("the record's input_sha256 is not 64 hex characters")
    outcome = _outcome_of(document)
    record = Record(document.invocation.invocation(), outcome)
    record.validate()
    _check_digest(record.invocation, document.input_sha256)
    return record


def _outcome_of(document: _RecordDocument) -> Outcome:
    """Return the outcome of a document that has the members of its status and no others."""
    match document:
        case _RecordDocument(
            status="success",
            output_json=str(output_json),
            error_name=UnsetType(),
            retryable=UnsetType(),
            suspension_reason=UnsetType(),
            state_json=UnsetType(),
        ):
            return Success(output_json.encode())
        case _RecordDocument(
            status="failure",
            output_json=UnsetType(),
            error_name=str(error_name),
            retryable=bool(retryable),
            suspension_reason=UnsetType(),
            state_json=UnsetType(),
        ):
            return Failure(error_name, retryable)
        case _RecordDocument(
            status="suspended",
            output_json=UnsetType(),
            error_name=UnsetType(),
            retryable=UnsetType(),
            suspension_reason=SuspensionReason() as reason,
            state_json=str(state_json),
        ):
            return Suspended(reason, state_json.encode())
        case _:
            raise InvalidRecord(
                f"a record of status {document.status} has the members of that status, none of"
                " them null, and no members of another"
            )


def _check_size(data: bytes) -> None:
    if len(data) > RECORD_LIMIT_BYTES:
        raise InvalidRecord(
            f"the record has {len(data)} bytes and the limit is {RECORD_LIMIT_BYTES}: store large"
            " data elsewhere and return a reference to it"
        )


def _check_digest(invocation: Invocation, input_sha256: str) -> None:
    actual = invocation.input_sha256
    if input_sha256.lower() != actual:
        raise InputDigestMismatch(
            f"the record of operation {invocation.stable_key} carries the digest {input_sha256},"
            f" and its input has {actual}: one of the two was changed after it was written"
        )
