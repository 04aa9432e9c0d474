from __future__ import annotations

import hashlib
import marshal
import math
import re
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from perdure.errors import InvalidPayload, PerdureError

INPUT_LIMIT_BYTES: Final = 2 * 1024 * 1024
"""The largest input document of an operation."""

RECORD_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""The largest record document: identity, input and outcome together."""

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_encode_in_order: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder[Any]().decode
_UNSAYABLE: Final = (TypeError, ValueError, AttributeError, RecursionError, ArithmeticError)
"""What comes of encoding or comparing what JSON cannot say: decimals raise arithmetic errors."""
_TOKEN: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*+|[ \t\r\n]++'


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of bytes as lowercase hex."""
    return hashlib.sha256(data).hexdigest()


# --- values ------------------------------------------------------------------------------------


def encode(value: object, *, what: str = "result") -> bytes:
    """Return a JSON value as bytes, with the keys of every dict sorted.

    Only what comes back equal is accepted: None, bool, int, finite float, str, list, and dict with
    str keys. Subclasses whose values are equal, such as a StrEnum or a defaultdict, are written as
    what they hold. Raises `InvalidPayload` with the path, which begins with `what`.
    """
    data, _ = encode_and_decode(value, what=what)
    return data


def encode_and_decode(value: object, *, what: str = "result") -> tuple[bytes, Any]:
    """Return a JSON value as bytes, as `encode` does, and the twin that `decode` gives for them.

    Handing on the twin makes a first execution see the same object that a replay will see.
    """
    try:
        data = _encode(value)
        twin = _decode(data)
        if twin == value:
            return data, twin
    except _UNSAYABLE as error:
        raise InvalidPayload(_objection(value, what, error)) from error
    raise InvalidPayload(_objection(value, what))


def exact_bytes(value: object) -> bytes | None:
    """Return what `encode` returns where a value comes back with every type it has, else None."""
    try:
        data = _encode(value)
        if _decode(data) != value:
            return None
        # Subclasses of str, int, dict and list compare equal to what they hold, and only exact
        # types pass this.
        marshal.dumps(cast("Any", value))
    except _UNSAYABLE:
        return None
    return data


def decode(data: bytes, *, what: str = "payload") -> Any:
    """Return the value of bytes that `encode` wrote or `check_json` accepted.

    It is as strict as `check_json` except for member names that stand twice. Numbers that a Python
    float or int cannot hold, and nesting beyond the recursion limit, raise `InvalidPayload`.
    """
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} cannot be decoded: {error}") from error


def _objection(value: object, what: str, error: Exception | None = None) -> str:
    """Say which part of a value JSON does not carry, and what to do about it."""
    around: set[int] = set()
    todo: list[tuple[object, Place, bool]] = [(value, (None, what), False)]
    while todo:
        item, place, left = todo.pop()
        if left:
            around.discard(id(item))
            continue
        members = _members(item)
        if members is None:
            if complaint := _complaint(item):
                return f"{path_of(place)} {complaint}"
            continue
        if id(item) in around:
            return f"{path_of(place)} contains itself, which JSON cannot say"
        around.add(id(item))
        todo.append((item, place, True))
        for key, step, child in reversed(members):
            if not isinstance(key, str) or _complaint(key):
                return f"{path_of(place)} has the key {key!r}; keys are str of Unicode text"
            todo.append((child, (place, step), False))
    if isinstance(error, RecursionError):
        return f"{what} is nested more deeply than the recursion limit allows: flatten it"
    return f"{what} is {a_named(value)} that does not come back equal from JSON: convert it"


Place: TypeAlias = tuple["Place | None", str]
"""Where a value stands: the place that it is in, and the step from there."""


def path_of(place: Place) -> str:
    """Return a place as people write it, such as `result.items[3]`."""
    steps: list[str] = []
    around: Place | None = place
    while around is not None:
        around, step = around
        steps.append(step)
    return "".join(reversed(steps))


def _members(item: object) -> list[tuple[object, str, object]] | None:
    """Return the key, the step of the path and the value of each member; None for a leaf."""
    if isinstance(item, dict):
        members = cast("dict[object, object]", item)
        return [(key, step_of(key), child) for key, child in members.items()]
    if isinstance(item, list):
        elements = cast("list[object]", item)
        return [("", f"[{index}]", child) for index, child in enumerate(elements)]
    return None


def step_of(key: object) -> str:
    """Return the step of a path to what stands under a key."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _complaint(leaf: object) -> str | None:
    """Say why a value that is no container does not survive JSON, or None when it does."""
    try:
        if _decode(_encode(leaf)) == leaf:
            return None
    except _UNSAYABLE:
        pass
    if type(leaf) is str:
        return "is a str with a lone surrogate, which is not Unicode text: replace it"
    if type(leaf) is float:
        return f"is {leaf!r}, which JSON has no number for: return None or a str"
    if type(leaf) is int:
        return "is an int with more digits than Python reads back: return it as a hex str"
    return (
        f"is {a_named(leaf)}; operations take and return JSON values (None, bool, int, float, str,"
        f" list, and dict with str keys): {_advice(leaf)}"
    )


_ADVICE: Final = {
    **dict.fromkeys(("set", "frozenset", "tuple", "deque"), "convert it, or return its list"),
    **dict.fromkeys(("bytes", "bytearray"), "convert it to text, for instance with base64"),
    **dict.fromkeys(("datetime", "date", "time"), "convert it with isoformat()"),
    **dict.fromkeys(("Decimal", "UUID", "PosixPath", "WindowsPath"), "convert it with str()"),
}


def _advice(leaf: object) -> str:
    if hasattr(leaf, "model_dump"):
        return 'convert it with model_dump(mode="json")'
    if hasattr(leaf, "__dataclass_fields__"):
        return "convert it with dataclasses.asdict()"
    return _ADVICE.get(type(leaf).__name__, "convert it")


def a_named(value: object) -> str:
    """Return the type of a value with its article."""
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# --- documents -----------------------------------------------------------------------------------


def check_json(data: bytes, *, what: str = "payload") -> None:
    """Check that bytes are exactly one strict JSON document.

    Strict: UTF-8 without a byte order mark, no member name twice in one object (compared after
    unescaping), no lone surrogate, no NaN or Infinity. Numbers may have any size and containers
    any depth. Raises `InvalidPayload` with the reason and the byte offset.
    """
    try:
        # What comes back byte for byte was written by the encoder, which writes only strict JSON.
        if _encode_in_order(_decode(data)) == data:
            return
    except (ValueError, RecursionError):
        pass
    # Not at the top: its patterns take milliseconds to compile, and most programs need none.
    from perdure.strict_json import MalformedError, check_document

    try:
        check_document(data)
    except MalformedError as malformed:
        raise InvalidPayload(f"{what} is not one strict JSON document: {malformed}") from None


def check_payload(data: bytes, *, what: str, limit_bytes: int) -> None:
    """Check that bytes are one strict JSON document of 1 to `limit_bytes` bytes."""
    check_size(data, what=what, limit_bytes=limit_bytes)
    check_json(data, what=what)


def check_size(data: bytes, *, what: str, limit_bytes: int) -> None:
    """Check that there are 1 to `limit_bytes` bytes."""
    if not data:
        raise InvalidPayload(f"{what} is empty; it holds one JSON document, null for nothing")
    if len(data) > limit_bytes:
        raise InvalidPayload(
            f"{what} has {len(data)} bytes and the limit is {limit_bytes}: store large data"
            " elsewhere and pass a reference to it"
        )


def read_document(
    data: bytes, decoder: msgspec.json.Decoder[T], *, what: str, refuse: type[PerdureError]
) -> T:
    """Return a wire document of a fixed shape, read by its typed decoder.

    Unknown members are refused if the decoder's type forbids them, members that stand twice
    always. Raises `refuse`.
    """
    try:
        check_json(data, what=what)
        return decoder.decode(data)
    except InvalidPayload as error:
        raise refuse(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise refuse(f"{what} does not have the shape of one: {error}") from error


def quote(text: str) -> bytes:
    """Return text as a JSON string: only quotes, backslashes and C0 controls are escaped."""
    try:
        return _encode(text)
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"text with a lone surrogate at index {error.start}") from error


def float_text(value: float) -> str:
    """Return a finite float with its shortest digits laid out in full, never with an exponent.

    An integral value has no fraction; negative zero is `-0`.
    """
    if not math.isfinite(value):
        raise InvalidPayload(f"{value!r} is a float that JSON has no number for")
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent)
    # An exponent stands in the shortest form only where the point lies outside of the digits.
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits}{'0' * (point - len(digits))}"


def reserialise(data: bytes) -> bytes:
    """Return a JSON document minified, with strings and floats in their canonical form.

    Members keep their order; integers, and numbers beyond a float's range, keep their digits.
    Raises `InvalidPayload` as `check_json` does.
    """
    check_json(data)
    return re.sub(_TOKEN, _canonical_token, data)


def _canonical_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[0] == 0x22:
        return _encode(_decode(token)) if b"\\" in token else token
    if token[0] in b" \t\r\n":
        return b""
    if not any(sign in token for sign in b".eE"):
        return token
    value = float(token)
    return float_text(value).encode() if math.isfinite(value) else token
