from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from perdure.storage.pieces import Beginning, Split, beginnings
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.failures import PieceGone

T = TypeVar("T")

PIECE_COLUMNS: Final = {
    "piece_digest": "bytea",
    "piece_parent": "bytea",
    "piece_packing": "bigint",
    "piece_data": "bytea",
}
"""The columns of pieces that are added with whatever needs them."""

_REMEMBERED: Final = 20_000
_MOST_TRIES: Final = 4


class NewPiece(msgspec.Struct, frozen=True):
    """A piece of inputs to be written, below its parent."""

    digest: bytes
    parent: bytes | None
    packing: int
    data: bytes


class Pieces:
    """The pieces of inputs, and which of them are known to be there.

    What is known may be out of date: the database refuses a record whose pieces are gone.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._known: dict[bytes, None] = {}

    async def new(self, wholes: Sequence[Split]) -> dict[str, list[Any]]:
        """Return the pieces of documents that are not there yet, as far as is known, as columns."""
        found = [piece for whole in wholes if whole.newest for piece in await self._missing(whole)]
        pieces = {piece.digest: piece for piece in found}
        rows = [*pieces.values()]
        return {
            "piece_digest": [piece.digest for piece in rows],
            "piece_parent": [piece.parent for piece in rows],
            "piece_packing": [piece.packing for piece in rows],
            "piece_data": [piece.data for piece in rows],
        }

    async def _missing(self, whole: Split) -> list[NewPiece]:
        name = self._db.rows.name
        known = await self._longest_known(whole.newest)
        older = whole.cuts[: len(whole.cuts) - len(whole.newest)]
        missing = whole.newest[known:]
        parent = name(whole.newest[known - 1].digest) if known else None
        if older and not known:
            oldest = beginnings(whole.document, older)
            known = await self._longest_known(oldest)
            missing = oldest[known:] + missing
            parent = name(oldest[known - 1].digest) if known else None
        parents = {}
        for beginning in missing:
            parents[beginning.digest] = parent
            parent = name(beginning.digest)
        if self._db.blobs.concern([whole]):
            # Not put for nothing where somebody else has written them.
            there = await self._there(missing)
            missing = [one for one in missing if name(one.digest) not in there]
        return [
            NewPiece(digest, parents[beginning.digest], packing, data)
            for beginning in await self._db.blobs.lift_pieces(missing)
            for digest, packing, data in [self._db.rows.new_piece(beginning)]
        ]

    def remember(self, wholes: Sequence[Split]) -> None:
        """Note that the pieces of documents are there."""
        for whole in wholes:
            for beginning in whole.newest:
                self._known[self._db.rows.name(beginning.digest)] = None
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    async def keep(
        self, wholes: Sequence[Split], write: Callable[[dict[str, list[Any]]], Awaitable[T]]
    ) -> T:
        """Write what needs the pieces of documents, and with it those that are not there yet.

        `write` gets them as columns, and is called again when one of those that are there was
        erased since it was last seen.
        """
        for _ in range(_MOST_TRIES):
            more = await self.new(wholes)
            try:
                written = await write(more)
            except PieceGone:
                self._known.clear()
                continue
            self.remember(wholes)
            return written
        return await write(await self.new(wholes))

    async def _longest_known(self, ends: Sequence[Beginning]) -> int:
        # A conversation grows at its end, so the longest known beginning is one of the last.
        digests = [self._db.rows.name(beginning.digest) for beginning in ends]
        for count in range(len(ends), 0, -1):
            if digests[count - 1] in self._known:
                return count
        there = await self._there(ends)
        for count in range(len(ends), 0, -1):
            if digests[count - 1] in there:
                return count
        return 0

    async def _there(self, ends: Sequence[Beginning]) -> set[bytes]:
        """Return the names of those beginnings that the database has."""
        digests = [self._db.rows.name(beginning.digest) for beginning in ends]
        return {digest for (digest,) in await self._db.read("known_pieces", digests=digests)}
