from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.errors import InvalidPayload

_TOKEN: Final = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*+|[\[\]{},]', re.DOTALL
).finditer
_OPENING: Final = frozenset(b"[{")
_CLOSING: Final = frozenset(b"]}")
_COMMA: Final = b","[0]
_QUOTE: Final = b'"'[0]


class Bounds(msgspec.Struct, frozen=True):
    """How large a document and its pieces may be; each limit is inclusive.

    `value_bytes` limits every string and member name, decoded, and the digits of a number; `items`
    the elements of an array, or the members of an object; `depth` the containers within another.
    """

    document_bytes: int
    value_bytes: int
    depth: int
    items: int

    def check(self, data: bytes, *, what: str) -> None:
        """Check a document that is well formed; raise `InvalidPayload` for a limit it breaks."""
        self.check_size(data, what=what)
        openings = data.count(b"[") + data.count(b"{")
        commas_at_most = data.count(b",")
        if len(data) <= self.value_bytes and openings <= self.depth and commas_at_most < self.items:
            return
        commas: list[int] = []
        for match in _TOKEN(data):
            first = data[match.start()]
            if first == _COMMA:
                commas[-1] += 1
                if commas[-1] >= self.items:
                    raise InvalidPayload(f"{what} has over {self.items} items in one place")
            elif first in _OPENING:
                commas.append(0)
                if len(commas) > self.depth:
                    raise InvalidPayload(f"{what} is nested over {self.depth} levels deep")
            elif first in _CLOSING:
                commas.pop()
            elif match.end() - match.start() > self.value_bytes:
                self._check_value(match[0], what)

    def check_size(self, data: bytes, *, what: str) -> None:
        """Check the document as a whole; raise `InvalidPayload`."""
        if len(data) > self.document_bytes:
            raise InvalidPayload(
                f"{what} has {len(data)} bytes and the limit is {self.document_bytes}: store large"
                " data elsewhere and pass a reference to it"
            )

    def _check_value(self, token: bytes, what: str) -> None:
        size = len(token)
        if token[0] == _QUOTE:
            size = len(msgspec.json.decode(token, type=str).encode())
        if size > self.value_bytes:
            raise InvalidPayload(
                f"{what} has a value of {size} bytes and the limit is {self.value_bytes}: store"
                " large data elsewhere and pass a reference to it"
            )


_MIB: Final = 1024 * 1024

ENVELOPE: Final = Bounds(2 * _MIB, 2 * _MIB, 1 << 62, 1 << 62)
"""An envelope, which is bounded as a whole only."""

RETRY: Final = Bounds(64 * 1024, 64 * 1024, 1 << 62, 1 << 62)
HISTORY: Final = Bounds(16 * _MIB, _MIB, 64, 65_536)
PAUSED_STATE: Final = Bounds(32 * _MIB, 16 * _MIB, 64, 65_536)
RESUME_DECISIONS: Final = Bounds(4 * _MIB, _MIB, 32, 16_384)
