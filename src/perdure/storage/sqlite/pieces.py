from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from perdure.errors import StorageCorrupt

Queries = Mapping[str, str]

PLAIN: Final = 0
DEFLATED: Final = 1

_WORTH_PACKING_BYTES: Final = 256
_LEVEL: Final = 1


class Beginning(msgspec.Struct, frozen=True, gc=False):
    """A beginning of an input: its last part, and the digest of all of it up to there.

    Equal digests mean equal beginnings, so inputs that begin alike share their pieces.
    """

    digest: bytes
    part: bytes


class Split(msgspec.Struct, frozen=True):
    """A document, the cuts in it, its newest beginnings, and what follows the last cut."""

    document: bytes
    cuts: tuple[int, ...]
    newest: list[Beginning]
    tail: bytes


def split(document: bytes, cuts: tuple[int, ...], digests: tuple[bytes, ...]) -> Split:
    """Split a document at its cuts; `digests` are those of it up to each of the newest cuts."""
    if not cuts:
        return Split(document, cuts, [], document)
    first = len(cuts) - len(digests)
    begins = (cuts[first - 1] if first else 0, *cuts[first:])
    newest = [
        Beginning(digest, document[begin:end])
        for digest, begin, end in zip(digests, begins, cuts[first:], strict=False)
    ]
    return Split(document, cuts, newest, document[cuts[-1] :])


def _beginnings(document: bytes, cuts: Sequence[int]) -> list[Beginning]:
    running = hashlib.sha256()
    beginnings: list[Beginning] = []
    begin = 0
    for end in cuts:
        part = document[begin:end]
        running.update(part)
        beginnings.append(Beginning(running.digest(), part))
        begin = end
    return beginnings


def keep(connection: sqlite3.Connection, sql: Queries, whole: Split) -> int | None:
    """Write the pieces that the store does not know yet; return the last one's number.

    Returns None when there are no cuts.
    """
    known, parent = _longest_known(connection, sql, whole.newest)
    missing = whole.newest[known:]
    older = whole.cuts[: len(whole.cuts) - len(whole.newest)]
    if older and parent is None:
        beginnings = _beginnings(whole.document, older)
        known, parent = _longest_known(connection, sql, beginnings)
        missing = beginnings[known:] + missing
    for beginning in missing:
        packing, data = pack(beginning.part)
        row = {"digest": beginning.digest, "parent": parent, "packing": packing, "data": data}
        ((parent,),) = connection.execute(sql["insert_piece"], row).fetchall()
    return parent


def join(rows: Sequence[tuple[int, bytes]]) -> bytes:
    """Return an input from its pieces and its tail, each as (packing, data), root first."""
    return b"".join(unpack(packing, data) for packing, data in rows)


def _longest_known(
    connection: sqlite3.Connection, sql: Queries, beginnings: Sequence[Beginning]
) -> tuple[int, int | None]:
    # A conversation grows at its end, so the longest known beginning is one of the last.
    for count in range(len(beginnings), 0, -1):
        row = {"digest": beginnings[count - 1].digest}
        found = connection.execute(sql["find_piece"], row).fetchone()
        if found is not None:
            return count, int(found[0])
    return 0, None


def pack(data: bytes) -> tuple[int, bytes]:
    """Return data as the store keeps it: how it is packed, and the bytes."""
    if len(data) >= _WORTH_PACKING_BYTES:
        packed = zlib.compress(data, _LEVEL)
        if len(packed) < len(data) * 0.9:
            return DEFLATED, packed
    return PLAIN, data


def unpack(packing: int, data: bytes) -> bytes:
    """Return the bytes that `pack` was given; raises `StorageCorrupt` for damaged ones."""
    if packing == PLAIN:
        return data
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise StorageCorrupt(
            f"packed bytes are damaged in the database ({error}); restore it from a backup"
        ) from error
