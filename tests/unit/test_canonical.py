from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import time
from collections import OrderedDict
from typing import Any

import pytest

from perdure.canonical import (
    check_json,
    check_payload,
    decode,
    encode,
    encode_and_decode,
    float_text,
    quote,
    reserialise,
    sha256_hex,
)
from perdure.errors import InvalidPayload


@dataclasses.dataclass
class Order:
    number: int = 1


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {}


class Colour(enum.Enum):
    RED = "red"


class Level(enum.StrEnum):
    HIGH = "high"


ITSELF: list[Any] = [1]
ITSELF.append({"again": ITSELF})

REFUSED: list[tuple[Any, str]] = [
    ({"items": [1, 2, 3, {4}]}, "result.items[3] is a set; operations take and return JSON values"),
    ({"items": {4}}, "convert it, or return its list"),
    ({"a b": [(1, 2)]}, "result['a b'][0] is a tuple"),
    ([[{"when": datetime.date(2026, 1, 2)}]], "result[0][0].when is a datetime.date"),
    ({"data": b"x"}, "result.data is a bytes"),
    (decimal.Decimal("1.5"), "result is a decimal.Decimal"),
    ([Order()], "dataclasses.asdict()"),
    ([Model()], 'model_dump(mode="json")'),
    ([object()], "result[0] is an object"),
    ([Colour.RED], "result[0] is a "),
    ({"ratio": float("nan")}, "result.ratio is nan"),
    ([float("-inf")], "result[0] is -inf"),
    ([10**5000], "result[0] is an int with more digits"),
    (["\ud800"], "result[0] is a str with a lone surrogate"),
    ({"a": {"\ud800": 1}}, "result.a has the key '\\ud800'"),
    ({"a": {1: 2}}, "result.a has the key 1"),
    ({True: 2}, "result has the key True"),
    ({None: 2}, "result has the key None"),
    (ITSELF, "result[1].again contains itself"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_what_json_does_not_carry_is_refused_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode(value)
    assert message in str(caught.value)


def test_the_path_begins_with_what_the_caller_names() -> None:
    with pytest.raises(InvalidPayload, match=r"^arguments\.args\[0\] is a set"):
        encode({"args": [{1}]}, what="arguments")


def test_a_value_that_stands_in_two_places_does_not_contain_itself() -> None:
    shared = {"a": 1}
    assert encode([shared, shared]) == b'[{"a":1},{"a":1}]'
    with pytest.raises(InvalidPayload, match=r"result\[2\] is a set"):
        encode([shared, shared, {1}])


def test_nesting_beyond_the_recursion_limit_is_refused_not_crashed() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidPayload, match="nested more deeply"):
        encode(deep)
    nested: Any = ()
    for _ in range(5000):
        nested = (nested,)
    with pytest.raises(InvalidPayload, match=r"result\[0\] is a tuple"):
        encode([nested])
    with pytest.raises(InvalidPayload, match="payload cannot be decoded"):
        decode(b"[" * 200_000 + b"]" * 200_000)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [None, True, 1.0, -0.0, 2**200]}, b'{"a":[null,true,1.0,-0.0,%d],"b":1}'),
        (OrderedDict(b=Level.HIGH, a=1), b'{"a":1,"b":"high"}'),
        ("\x00 \u2028 é", '"\\u0000 \u2028 é"'.encode()),
    ],
)
def test_values_are_written_with_sorted_keys_and_come_back_plain(value: Any, data: bytes) -> None:
    expected = data % 2**200 if b"%d" in data else data
    written, twin = encode_and_decode(value)
    assert written == encode(value) == expected
    assert twin == value
    assert type(twin) in {dict, str}


def test_decode_refuses_what_python_cannot_hold() -> None:
    for data in (b"1e400", b"1" * 5000, b"[1", b'"\\ud800"'):
        with pytest.raises(InvalidPayload, match="output cannot be decoded"):
            decode(data, what="output")


FAULTS: list[tuple[bytes, str]] = [
    (b"", "it ends at byte 0 where a value is expected"),
    (b'{"a":1', "it ends at byte 6 where ',' or '}' is expected"),
    (b'{"a":1}}', "something after its end at byte 7"),
    (b'[{"a":[1}]', "'}' at byte 8 where ',' or ']' is expected"),
    (b'{"a":{} "b":1}', "'\"' at byte 8 where ',' or '}' is expected"),
    (b"[1,]", "']' at byte 3 where a value is expected"),
    (b'{"a":1,}', "'}' at byte 7 where a member name is expected"),
    (b'{"a" 1}', "'1' at byte 5 where ':' is expected"),
    (b"{]", "']' at byte 1 where a member name is expected"),
    (b"[NaN]", "'N' at byte 1 where a value is expected"),
    ("[é]".encode(), "'é' at byte 1 where a value is expected"),
    (b'{"a":1,"b":{"x":1,"\\u0078":2}}', 'member name "x" stands twice in one object, again at'),
    (b'{"' + b"k" * 100 + b'":1,"' + b"k" * 100 + b'":1}', "kkk… stands twice"),
    (b'"a\\x"', "an unknown escape within a string at byte 2"),
    (b'["\\ud800\\u0041"]', "a lone surrogate within a string at byte 2"),
    (b'"a\nb"', "a raw control character within a string at byte 2"),
    (b'{"a', "it ends at byte 3 within a string"),
    (b'["\xed\xa0\x80"]', "bytes that are not UTF-8 at byte 2"),
    (b"\xef\xbb\xbf{}", "a byte order mark at byte 0"),
]


@pytest.mark.parametrize(("data", "reason"), FAULTS)
def test_a_fault_is_reported_with_its_place(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        check_json(data, what="the input")
    assert str(caught.value).startswith("the input is not one strict JSON document: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b" 1" + b"}" * 100_000,
        b"[" + b"1," * 500_000 + b"0.10]",
        b'"' + b"\\n" * 1_000_000 + b'\\/"',
        b"1" * 1_000_000,
        b"[" + b" " * 1_000_000 + b"]",
    ],
    ids=["arrays", "objects", "elements", "escapes", "digits", "spaces"],
)
def test_size_and_depth_have_no_limit_and_take_linear_time(data: bytes) -> None:
    started = time.process_time()
    check_json(data)
    with pytest.raises(InvalidPayload):
        check_json(data[:-1] + b"x")
    assert time.process_time() - started < 5


def test_payload_limits_are_inclusive() -> None:
    check_payload(b'"abcd"', what="it", limit_bytes=6)
    with pytest.raises(InvalidPayload, match="it has 6 bytes and the limit is 5"):
        check_payload(b'"abcd"', what="it", limit_bytes=5)
    with pytest.raises(InvalidPayload, match="it is empty"):
        check_payload(b"", what="it", limit_bytes=5)


def test_reserialising_keeps_order_and_digits_and_normalises_the_rest() -> None:
    data = b' { "z" : [ 1.50 , 1E2 , 1e400, 12345678901234567890123 , true ] ,\n"a":"\\u00e9\\/" } '
    written = reserialise(data)
    assert written == '{"z":[1.5,100,1e400,12345678901234567890123,true],"a":"é/"}'.encode()
    with pytest.raises(InvalidPayload):
        reserialise(b'{"a":1,"a":1}')


def test_only_unicode_text_and_finite_floats_are_written() -> None:
    with pytest.raises(InvalidPayload, match="lone surrogate at index 1"):
        quote("a\udfff")
    for value in (float("nan"), float("inf")):
        with pytest.raises(InvalidPayload, match="no number"):
            float_text(value)


def test_the_digest_is_lowercase_hex() -> None:
    assert sha256_hex(b"{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
