from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.errors import StorageCorrupt

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


def beginnings(document: bytes, cuts: Sequence[int]) -> list[Beginning]:
    """Return every beginning of a document that ends at one of the first cuts."""
    running = hashlib.sha256()
    found: list[Beginning] = []
    begin = 0
    for end in cuts:
        part = document[begin:end]
        running.update(part)
        found.append(Beginning(running.digest(), part))
        begin = end
    return found


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
