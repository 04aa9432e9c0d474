from __future__ import annotations

from typing import Final

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from perdure.canonical import read_document
from perdure.errors import InvalidPayload, InvalidRecord
from perdure.journal.invocation import Invocation, encode_invocation, parse_invocation
from perdure.journal.record import Record, encode_record, parse_record

PAYLOAD_LIMIT_BYTES: Final = 2 * 1024 * 1024 - 64 * 1024
"""What Temporal carries in one payload, less what a codec adds to it."""

_ENCODING: Final = b"json/plain"
_ENVELOPE_BYTES: Final = 1024
_encode: Final = msgspec.json.Encoder().encode
_text: Final = msgspec.json.Decoder(str)


def document_value(document: bytes) -> RawValue:
    """Return a JSON document as Temporal carries it, byte for byte."""
    return RawValue(Payload(metadata={"encoding": _ENCODING}, data=document))


def document_of(value: RawValue) -> bytes:
    """Return the JSON document that was carried; raises `InvalidPayload` for anything else."""
    encoding = value.payload.metadata.get("encoding", b"")
    if encoding != _ENCODING:
        raise InvalidPayload(
            f"a payload has the encoding {encoding.decode('utf-8', 'replace')[:200]!r} and not"
            f" {_ENCODING.decode()!r}: give this client and the other the same data converter"
        )
    return value.payload.data


def invocation_value(invocation: Invocation) -> RawValue:
    """Return what the activity of an operation is given."""
    return document_value(encode_invocation(invocation))


def invocation_of(value: RawValue) -> Invocation:
    """Return the invocation that an activity was given; raises as `parse_invocation`."""
    return parse_invocation(document_of(value))


def record_value(record: Record) -> RawValue:
    """Return what an operation comes back with: the text of its record, as a JSON string."""
    return document_value(_encode(encode_record(record).decode()))


def record_of(value: RawValue) -> Record:
    """Return the record that came back; raises as `parse_record`."""
    try:
        document = document_of(value)
    except InvalidPayload as error:
        raise InvalidRecord(f"the answer is no record: {error}") from error
    text = read_document(document, _text, what="the text of a record", refuse=InvalidRecord)
    return parse_record(text.encode())


def carried_bytes(converter: DataConverter, limit_bytes: int) -> int:
    """Return how large a document may be that a converter carries, up to a limit of its own.

    A payload that the server refuses after a handler has acted would have it act again.
    """
    if converter.external_storage is not None:
        return limit_bytes
    return min(limit_bytes, PAYLOAD_LIMIT_BYTES)


def check_answerable(invocation: Invocation, limit_bytes: int) -> None:
    """Check that there is room for a record, which repeats the input, before anything is called.

    Raises `InvalidPayload`; the invocation is a valid one.
    """
    document = _encode(encode_invocation(invocation).decode())
    if len(document) + _ENVELOPE_BYTES > limit_bytes:
        raise InvalidPayload(
            f"a record of operation {invocation.stable_key} would repeat {len(document)} bytes, and"
            f" Temporal carries {limit_bytes}: store large data elsewhere and pass a reference to"
            " it, or give the clients and workers `payload_storage`"
        )
