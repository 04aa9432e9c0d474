from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.errors import StorageCorrupt

PLAIN: Final = 0
DEFLATED: Final = 1
FRAMED: Final = 2
"""Flags the rest of a document that has something before its first piece, too."""
IN_BLOB: Final = 4
"""Flags a rest or a piece that stands in a blob: what is kept is a reference."""

_WORTH_SHARING_BYTES: Final = 4096
_LEAST_PIECE_BYTES: Final = 256
_DEEPEST: Final = 8
_HEAD_LENGTH_BYTES: Final = 4
_MARK_BYTES: Final = 8
"""How much of the digest of its last piece the rest of a document has with it."""
_WORTH_PACKING_BYTES: Final = 256
_SMALL_BYTES: Final = 8192
_SMALL_LEVEL: Final = 6
"""Small data is packed no faster on a lower one."""
_LARGE_LEVEL: Final = 1
_COMMON: Final = (
    b'"null,true,false,"status":"error","message":"value":"data":{"id":"name":"url":"https://'
    b'type":"object","properties":{"description":" not are was this have you for with that and in'
    b' of to the "usage":{"input_tokens":,"output_tokens":,"details":{},"timestamp":"'
    b'2026-01-01T00:00:00Z","tool_name":"args":"{\\"tool_call_id":"tool-return","part_kind":"'
    b'tool-call","kind":"request","kind":"response","model_name":"parts":[{"type":"text","text":"'
    b'role":"assistant","content":"role":"user","content":"'
)
"""What small data in a conversation often holds, known to both sides before it begins.

What was packed is read with it, so it stays as it is: another one is another way of packing.
"""


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])


Packed = tuple[int, bytes]
"""How something is packed, and the bytes that are kept for it."""


class Beginning(msgspec.Struct, frozen=True, gc=False):
    """A beginning of a document: its last part, and the digest of all of it up to there.

    Equal digests mean equal beginnings, so documents that begin alike share their pieces. `packed`
    is the part as it is kept, if that is known.
    """

    digest: bytes
    part: bytes
    packed: Packed | None = None


class Split(msgspec.Struct, frozen=True):
    """A document, the cuts in it, its newest beginnings, and what no piece holds.

    That is what follows the last cut and, where the pieces do not begin with the document, what
    comes before the first of them; `head` is None otherwise. `packed` is all of that as it is kept,
    if that is known.
    """

    document: bytes
    cuts: tuple[int, ...]
    newest: list[Beginning]
    tail: bytes
    head: bytes | None = None
    packed: Packed | None = None

    @property
    def last(self) -> bytes | None:
        """The digest that names the last piece, or None when there are none."""
        return self.newest[-1].digest if self.newest else None


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


def carve(document: bytes) -> Split:
    """Split a large JSON document at elements of the longest list in it.

    What is passed on from run to run grows at the end of a list, for instance a conversation: the
    same elements then give the same pieces, whatever stands before and after them.
    """
    start, cuts = _longest_list(document) if len(document) > _WORTH_SHARING_BYTES else (0, ())
    if not cuts:
        return Split(document, (), [], document)
    newest = beginnings(document, cuts, start)
    return Split(document, cuts, newest, document[cuts[-1] :], document[:start])


def _longest_list(document: bytes) -> tuple[int, tuple[int, ...]]:
    """Return where the first element of a document's longest list is, and cuts behind others."""
    start, inner = 0, document
    try:
        for _ in range(_DEEPEST):
            if inner.startswith(b"["):
                elements = [bytes(element) for element in _elements.decode(inner)]
                longest = max(elements, key=len, default=b"")
                if 2 * len(longest) < len(inner):
                    return start + 1, _cuts(document, start + 1, elements)
            elif inner.startswith(b"{"):
                longest = max(map(bytes, _members.decode(inner).values()), key=len, default=b"")
            else:
                break
            start += inner.index(longest)
            inner = longest
    except (msgspec.MsgspecError, ValueError):
        pass  # it is not JSON as perdure writes it, and is kept as a whole
    return 0, ()


def _cuts(document: bytes, start: int, elements: Sequence[bytes]) -> tuple[int, ...]:
    cuts: list[int] = []
    begin = end = start
    for element in elements:
        end += len(element) + 1
        if document[end - 1 : end] not in {b",", b"]"}:
            return ()
        if end - begin >= _LEAST_PIECE_BYTES:
            # In front of the comma, which is no bracket yet where the list goes on.
            cuts.append(end - 1)
            begin = end
    return tuple(cuts)


def beginnings(document: bytes, cuts: Sequence[int], start: int = 0) -> list[Beginning]:
    """Return every beginning of a document, from `start`, that ends at one of the first cuts."""
    running = hashlib.sha256()
    found: list[Beginning] = []
    begin = start
    for end in cuts:
        part = document[begin:end]
        running.update(part)
        found.append(Beginning(running.digest(), part))
        begin = end
    return found


def rest_bytes(whole: Split) -> int:
    """Return how much of a document no piece of it holds."""
    return len(whole.head or b"") + len(whole.tail)


def pack_rest(whole: Split) -> Packed:
    """Return what no piece of a document holds, as the store keeps it."""
    if whole.packed is not None:
        return whole.packed
    if whole.head is None:
        return pack(whole.tail)
    length = len(whole.head).to_bytes(_HEAD_LENGTH_BYTES, "big")
    mark = whole.newest[-1].digest[:_MARK_BYTES]
    packing, data = pack(length + mark + whole.head + whole.tail)
    return packing | FRAMED, data


def unpack_rest(packing: int, data: bytes, digest: bytes) -> tuple[bytes, bytes]:
    """Return what comes before the pieces of a document, and what follows them.

    `digest` is that of the last piece. Raises `StorageCorrupt` where the rest belongs to others.
    """
    rest = unpack(packing & ~FRAMED, data)
    if not packing & FRAMED:
        return b"", rest
    begin = _HEAD_LENGTH_BYTES + _MARK_BYTES
    if rest[_HEAD_LENGTH_BYTES:begin] != digest[:_MARK_BYTES]:
        raise StorageCorrupt(
            "a document has the pieces of another one in the database; restore it from a backup"
        )
    end = begin + int.from_bytes(rest[:_HEAD_LENGTH_BYTES], "big")
    return rest[begin:end], rest[end:]


def pack(data: bytes) -> Packed:
    """Return data as the store keeps it: how it is packed, and the bytes."""
    if len(data) >= _WORTH_PACKING_BYTES:
        packed = _deflate(data)
        if len(packed) < len(data) * 0.9:
            return DEFLATED, packed
    return PLAIN, data


def _deflate(data: bytes) -> bytes:
    if len(data) >= _SMALL_BYTES:
        return zlib.compress(data, _LARGE_LEVEL)
    packer = zlib.compressobj(_SMALL_LEVEL, zdict=_COMMON)
    return packer.compress(data) + packer.flush()


def unpack(packing: int, data: bytes) -> bytes:
    """Return the bytes that `pack` was given; raises `StorageCorrupt` for damaged ones."""
    if packing == PLAIN:
        return data
    unpacker = zlib.decompressobj(zdict=_COMMON)
    try:
        whole, problem = unpacker.decompress(data), "it was cut short, or goes on"
    except zlib.error as error:
        whole, problem = b"", str(error)
    if not unpacker.eof or unpacker.unused_data:
        raise StorageCorrupt(
            f"packed bytes are damaged in the database ({problem}); restore it from a backup"
        )
    return whole
