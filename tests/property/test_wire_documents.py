from __future__ import annotations

import json
import string
from decimal import Decimal
from typing import Any, NoReturn

from hypothesis import example, given
from hypothesis import strategies as st

from perdure.canonical import (
    check_json,
    decode,
    encode,
    encode_and_decode,
    float_text,
    quote,
    reserialise,
)
from perdure.errors import InvalidPayload
from perdure.journal import (
    Failure,
    Invocation,
    OperationKind,
    Record,
    Success,
    Suspended,
    SuspensionReason,
    encode_invocation,
    encode_record,
    parse_invocation,
    parse_record,
)
from perdure.strict_json import MalformedError, check_document

text = st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
spelled = st.builds(
    lambda value, ascii_only, indent: json.dumps(
        value, ensure_ascii=ascii_only, indent=indent
    ).encode(),
    values,
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(spelled))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        removed = draw(st.integers(0, 2))
        data[at : at + removed] = draw(st.sampled_from(FRAGMENTS))
    return bytes(data)


FRAGMENTS = [
    *(bytes([byte]) for byte in b'{}[]",:\\/ \t\n\r\x00\x0b\x1f\x7f\x80\xc3\xed\xff-+.eE019aNt'),
    b"",
    b'"a":1,',
    b"\\u00",
    b"\\ud800",
    b"\\udc00",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"NaN",
    b"Infinity",
    b"null",
    b"[]",
    b"{}",
]
# Short words over the alphabet of the grammar reach its corners sooner than documents do.
words = st.text('{}[]",:\\ud8c019aetrulnfs.-+E \n', max_size=24).map(str.encode)


def refuse(name: str) -> NoReturn:
    raise ValueError(name)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member name stands twice")
    return members


def is_strict_json(data: bytes) -> bool:
    try:
        value = json.loads(data.decode(), parse_constant=refuse, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def accepts(check: Any, data: bytes) -> bool:
    try:
        check(data)
    except (InvalidPayload, MalformedError):
        return False
    return True


@given(spelled | mutated() | words)
@example(b'{"a":1,"\\u0061":1}')
@example(b'[{"a":{}},{"a":[]}, "\\ud83d\\ude00", 1e999, -0]')
@example(b'"\\udBFF\\uDfff"')
@example(b"[[]")
def test_the_checks_agree_with_the_standard_library(data: bytes) -> None:
    expected = is_strict_json(data)
    assert accepts(check_document, data) is expected
    assert accepts(check_json, data) is expected


def spelling(value: Any) -> str:
    """Tell apart what Python calls equal, such as 1, 1.0 and True."""
    return json.dumps(value, sort_keys=True)


@given(values)
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    data, twin = encode_and_decode(value)
    check_json(data)
    assert spelling(twin) == spelling(decode(data)) == spelling(value)
    assert encode(twin) == data


@given(st.dictionaries(text, values, max_size=5), st.randoms())
def test_the_order_of_keys_does_not_change_the_bytes(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert encode({key: value[key] for key in keys}) == encode(value)


@given(spelled)
def test_a_reserialised_document_means_the_same(data: bytes) -> None:
    minified = reserialise(data)
    assert reserialise(minified) == minified
    assert json.loads(minified, parse_int=float) == json.loads(data, parse_int=float)


@given(text)
def test_strings_are_quoted_as_the_standard_library_does(value: str) -> None:
    assert quote(value).decode() == json.dumps(value, ensure_ascii=False)


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(1.7976931348623157e308)
@example(-0.0)
@example(1e16)
def test_floats_are_laid_out_in_full(value: float) -> None:
    laid_out = format(Decimal(repr(value)), "f")
    if "." in laid_out:
        laid_out = laid_out.rstrip("0").rstrip(".")
    assert float_text(value) == laid_out


identifiers = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=128)
invocations = st.builds(
    Invocation,
    identifiers,
    identifiers,
    st.integers(0, 2**64 - 1),
    st.sampled_from(OperationKind),
    identifiers,
    spelled,
)
outcomes = (
    st.builds(Success, spelled)
    | st.builds(Failure, identifiers, st.booleans())
    | st.builds(Suspended, st.sampled_from(SuspensionReason), spelled)
)


@given(st.builds(Record, invocations, outcomes))
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    data = encode_record(record)
    assert parse_record(data) == record
    assert encode_record(parse_record(data)) == data
    assert parse_invocation(encode_invocation(record.invocation)) == record.invocation
