"""Judges wire documents: `python -m perdure.testing.wire_oracle < vectors.jsonl`.

Reads JSON lines `{"kind": …, "document": …}` and writes one line for each: `{"valid": true,
"canonical": …}` with the document as this release writes it, or `{"valid": false, "error": …}`
with the name of the error that refuses it. A document that is not text stands in base64 in
`document_b64`, a long one as `[[text, count], …]` in `document_parts`; a canonical form that is
not text is given in `canonical_b64`. Other members of a line are ignored.

The details of a provider in a call are judged as the contract has it: `{"value": …}` is read, and
the bare object refused, though it is what is written; `parse_tool_request` and
`parse_approval_request` read both unless they are told not to.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

import msgspec

from perdure.canonical import check_json, float_text, reserialise
from perdure.errors import InvalidPayload, PerdureError
from perdure.journal import (
    Failure,
    Record,
    Success,
    Suspended,
    SuspensionReason,
    encode_invocation,
    encode_record,
    parse_invocation,
    parse_record,
)
from perdure.journal.invocation import InvocationDocument
from perdure.retry import backoff_ms
from perdure.testing.wire_checkpoints import canonical_snapshot, checkpoint_results
from perdure.testing.wire_payloads import PAYLOADS


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be said about one line: `canonical` bytes, or the name of an error."""

    canonical: bytes = b""
    error: str = ""

    def line(self) -> bytes:
        """Return the verdict as a JSON line, without its end."""
        if self.error:
            return msgspec.json.encode({"valid": False, "error": self.error})
        try:
            written = {"canonical": self.canonical.decode()}
        except UnicodeDecodeError:
            written = {"canonical_b64": base64.b64encode(self.canonical).decode()}
        return msgspec.json.encode({"valid": True, **written})


class _Line(msgspec.Struct):
    kind: str
    document: str | None = None
    document_b64: str | None = None
    document_parts: list[tuple[str, int]] | None = None

    def data(self) -> bytes:
        if self.document is not None:
            return self.document.encode()
        if self.document_b64 is not None:
            return base64.b64decode(self.document_b64, validate=True)
        if self.document_parts is not None:
            return "".join(text * count for text, count in self.document_parts).encode()
        raise ValueError("the line has no document")


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    error_name: str
    retryable: bool = False


class _Suspended(msgspec.Struct, forbid_unknown_fields=True):
    reason: SuspensionReason
    state_json: str


class _RecordArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `encode_record`, with exactly one outcome."""

    invocation: InvocationDocument
    success: str | None = None
    failure: _Failure | None = None
    suspended: _Suspended | None = None
    input_sha256: str | None = None


class _BackoffWindow(msgspec.Struct, forbid_unknown_fields=True):
    initial_delay_ms: int = 250
    maximum_delay_ms: int = 8000
    respect_retry_after: bool = True


class _BackoffArguments(msgspec.Struct, forbid_unknown_fields=True):
    run_id: str
    retry_number: int
    model_requests: int
    retry_after_seconds: int | None = None
    backoff: _BackoffWindow = msgspec.field(default_factory=_BackoffWindow)


def _invocation(data: bytes) -> bytes:
    return encode_invocation(parse_invocation(data))


def _record(data: bytes) -> bytes:
    return encode_record(parse_record(data))


def _encode_record(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_RecordArguments)
    if arguments.success is not None:
        outcome = Success(arguments.success.encode())
    elif arguments.failure is not None:
        outcome = Failure(arguments.failure.error_name, arguments.failure.retryable)
    elif arguments.suspended is not None:
        outcome = Suspended(arguments.suspended.reason, arguments.suspended.state_json.encode())
    else:
        raise ValueError("a record to encode has an outcome")
    record = Record(arguments.invocation.invocation(), outcome)
    return encode_record(record, input_sha256=arguments.input_sha256)


def _float(data: bytes) -> bytes:
    check_json(data)
    value = msgspec.json.decode(data, type=float)
    return float_text(value).encode()


def _backoff(data: bytes) -> bytes:
    arguments = msgspec.json.decode(data, type=_BackoffArguments)
    window = arguments.backoff
    delay_ms = backoff_ms(
        arguments.run_id,
        arguments.retry_number,
        arguments.model_requests,
        initial_ms=window.initial_delay_ms,
        maximum_ms=window.maximum_delay_ms,
        retry_after_seconds=arguments.retry_after_seconds if window.respect_retry_after else None,
    )
    return str(delay_ms).encode()


KINDS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "invocation": _invocation,
    "record": _record,
    "encode_record": _encode_record,
    "float": _float,
    "json_value": reserialise,
    "backoff": _backoff,
    "checkpoint_snapshot": canonical_snapshot,
    "checkpoint_ops": checkpoint_results,
    **PAYLOADS,
}
"""Each kind of document, and the function that returns its canonical form or refuses it.

The canonical form of `backoff` is the delay in milliseconds, that of `checkpoint_ops` the results
and the file, that of `sensitive_header` true or false.
"""

_lines: Final = msgspec.json.Decoder(_Line)


def judge(line: bytes) -> Verdict:
    """Return the verdict on one JSON line."""
    try:
        read = _lines.decode(line)
        data = read.data()
    except (ValueError, binascii.Error):
        return Verdict(error="InvalidLine")
    canonical = KINDS.get(read.kind)
    if canonical is None:
        return Verdict(error="UnknownKind")
    try:
        return Verdict(canonical(data))
    except PerdureError as error:
        return Verdict(error=type(error).__name__)
    except ValueError:
        return Verdict(error=InvalidPayload.__name__)


def main(source: Iterable[bytes], sink: BinaryIO) -> None:
    """Judge every line of a source and write the verdicts, each as soon as it is known."""
    for line in source:
        if line.strip():
            sink.write(judge(line).line() + b"\n")
            sink.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
