from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from psycopg import adapt, pq
from psycopg.abc import AdaptContext

_ABSENT: Final = b"\xff\xff\xff\xff"


class Column:
    """The values of one column of many rows, to be sent as an array of `kind`; None is null."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: str, values: Sequence[Any]) -> None:
        self.kind = kind
        self.values = values


class _Kind:
    __slots__ = ("array_oid", "dump", "oid")

    def __init__(self, oid: int, array_oid: int, dump: Callable[[Any], bytes]) -> None:
        self.oid = oid
        self.array_oid = array_oid
        self.dump = dump


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(4, "big") + data


def _bytea(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


_KINDS: Final = {
    "text": _Kind(25, 1009, _text),
    "bytea": _Kind(17, 1001, _bytea),
    "bigint": _Kind(20, 1016, lambda value: struct.pack("!iq", 8, value)),
    "double": _Kind(701, 1022, lambda value: struct.pack("!id", 8, value)),
    "boolean": _Kind(16, 1000, lambda value: b"\0\0\0\1\1" if value else b"\0\0\0\1\0"),
}


class _ColumnDumper(adapt.Dumper):
    """Writes a column in the binary form of an array.

    The arrays of psycopg are written element by element in Python, as text, which takes twice as
    long as the server takes for the rows.
    """

    format = pq.Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self.oid = 0

    def get_key(self, obj: Column, format: Any) -> Any:  # noqa: A002
        del format
        return (self.cls, obj.kind)

    def upgrade(self, obj: Column, format: Any) -> adapt.Dumper:  # noqa: A002
        del format
        dumper = _ColumnDumper(self.cls)
        dumper.oid = _KINDS[obj.kind].array_oid
        return dumper

    def dump(self, obj: Column) -> bytes:
        kind = _KINDS[obj.kind]
        dump = kind.dump
        parts = [_ABSENT if value is None else dump(value) for value in obj.values]
        head = struct.pack("!iiI", 1 if parts else 0, _ABSENT in parts, kind.oid)
        if parts:
            head += struct.pack("!ii", len(parts), 1)
        return head + b"".join(parts)


def columns_of(kinds: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Return the columns of rows, each of its kind."""
    return {name: Column(kind, [row[name] for row in rows]) for name, kind in kinds.items()}


def register(context: AdaptContext) -> None:
    """Teach a connection to send columns."""
    context.adapters.register_dumper(Column, _ColumnDumper)
