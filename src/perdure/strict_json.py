from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

# Quantifiers are possessive: a document is read once, and nothing is ever tried a second way.
_SPACE = rb"[ \t\r\n]*+"
_PLAIN = rb'[^"\\\x00-\x1f]*+'
_ESCAPE = (
    rb'\\(?:["\\/bfnrt]|u(?:(?![dD][89abAB])(?![dD][c-fC-F])[0-9a-fA-F]{4}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
_CHARACTERS = _PLAIN + rb"(?:" + _ESCAPE + _PLAIN + rb")*+"
_STRING = rb'"' + _CHARACTERS + rb'"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_ATOM = (
    rb"(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null"
    rb"|\[" + _SPACE + rb"\]|\{" + _SPACE + rb"\})"
)
_OPENER = rb"(\[(?!" + _SPACE + rb"\])|\{(?!" + _SPACE + rb"\}))"
_VALUE = rb"(?:" + _ATOM + rb"|" + _OPENER + rb")"

_ROOT: Final = re.compile(_SPACE + _VALUE + _SPACE).match
# Elements up to the end of an array, or up to the next container in it.
_ELEMENTS: Final = re.compile(
    rb"(?:" + _SPACE + _ATOM + _SPACE + rb",)*+"
    + _SPACE + rb"(?:" + _OPENER + rb"|" + _ATOM + _SPACE + rb"(\])" + _SPACE + rb")"
).match  # fmt: skip
# One member of an object, up to the comma or brace behind it, or up to the container it holds.
_MEMBER: Final = re.compile(
    _SPACE + rb"(?P<name>" + _STRING + rb")" + _SPACE + rb":" + _SPACE
    + rb"(?:" + _OPENER + rb"|" + _ATOM + _SPACE + rb"([,}])" + _SPACE + rb")"
).match  # fmt: skip
_AFTER_ELEMENT: Final = re.compile(rb"([,\]])" + _SPACE).match
_AFTER_MEMBER: Final = re.compile(rb"([,}])" + _SPACE).match
_SKIP: Final = re.compile(_SPACE).match
_GOOD_PREFIX: Final = re.compile(rb'"' + _CHARACTERS).match
_LONE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}").match

_A_NAME = (re.compile(_STRING).match, "a member name")
_A_COLON = (re.compile(rb":").match, "':'")
_A_VALUE = (re.compile(_ATOM).match, "a value")
_IN_ARRAY: Final = (_A_VALUE, (_AFTER_ELEMENT, "',' or ']'"))
_IN_OBJECT: Final = (_A_NAME, _A_COLON, _A_VALUE, (_AFTER_MEMBER, "',' or '}'"))


class MalformedError(Exception):
    """What is wrong with a document, and at which byte."""


def check_document(data: bytes) -> None:
    """Read a document once, without recursion; raise `MalformedError` at its first fault."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise MalformedError("a byte order mark at byte 0")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise MalformedError(f"bytes that are not UTF-8 at byte {error.start}") from None
    match = _ROOT(data)
    if match is None:
        raise _malformed(data, 0, _IN_ARRAY)
    end = match.end()
    if match[1]:
        end = _check_container(data, end, match[1])
    if end != len(data):
        raise MalformedError(f"something after its end at byte {end}")


def _check_container(data: bytes, position: int, opener: bytes) -> int:
    """Return where the container that was opened in front of `position` ends, with its spaces."""
    outer: list[set[bytes] | None] = []
    names: set[bytes] | None = set() if opener == b"{" else None  # None in an array
    while True:
        match = (_ELEMENTS if names is None else _MEMBER)(data, position)
        if match is None:
            raise _malformed(data, position, _IN_ARRAY if names is None else _IN_OBJECT)
        if names is not None:
            _add_name(names, match)
        position = match.end()
        opened, ended = match.groups()[-2:]
        if opened:
            outer.append(names)
            names = set() if opened == b"{" else None
            continue
        while ended != b",":
            if not outer:
                return position
            names = outer.pop()
            match = (_AFTER_ELEMENT if names is None else _AFTER_MEMBER)(data, position)
            if match is None:
                grammar = _IN_ARRAY if names is None else _IN_OBJECT
                raise _malformed(data, position, grammar[-1:])
            ended = match[1]
            position = match.end()


def _add_name(names: set[bytes], match: re.Match[bytes]) -> None:
    name = match["name"]
    if b"\\" in name:
        name = msgspec.json.encode(msgspec.json.decode(name))
    if name in names:
        shown = name.decode() if len(name) <= 80 else name[:80].decode(errors="replace") + "…"
        raise MalformedError(
            f"the member name {shown} stands twice in one object, again at byte"
            f" {match.start('name')}"
        )
    names.add(name)


def _malformed(data: bytes, position: int, grammar: tuple[Any, ...]) -> MalformedError:
    """Find the first token behind `position` that does not follow the grammar, and say why."""
    turn = 0
    while True:
        position = cast("re.Match[bytes]", _SKIP(data, position)).end()
        matcher, expected = grammar[turn % len(grammar)]
        match = matcher(data, position)
        if match is None:
            break
        position = match.end()
        turn += 1
    if position == len(data):
        return MalformedError(f"it ends at byte {position} where {expected} is expected")
    string = _GOOD_PREFIX(data, position)
    if string is not None and expected in {"a value", "a member name"}:
        return _bad_string(data, string.end())
    found = data[position : position + 4].decode(errors="replace")[0]
    return MalformedError(f"{found!r} at byte {position} where {expected} is expected")


def _bad_string(data: bytes, position: int) -> MalformedError:
    if position == len(data):
        return MalformedError(f"it ends at byte {position} within a string")
    if data[position] < 0x20:
        return MalformedError(f"a raw control character within a string at byte {position}")
    if _LONE(data, position):
        return MalformedError(f"a lone surrogate within a string at byte {position}")
    return MalformedError(f"an unknown escape within a string at byte {position}")
