from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.storage.pieces import Beginning, Split, beginnings
from perdure.storage.postgres.database import Database

_REMEMBERED: Final = 20_000


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

    async def missing(self, whole: Split) -> list[NewPiece]:
        """Return the pieces of an input that are not there yet, as far as is known."""
        if not whole.newest:
            return []
        known = await self._longest_known(whole.newest)
        older = whole.cuts[: len(whole.cuts) - len(whole.newest)]
        missing = whole.newest[known:]
        parent = whole.newest[known - 1].digest if known else None
        if older and not known:
            oldest = beginnings(whole.document, older)
            known = await self._longest_known(oldest)
            missing = oldest[known:] + missing
            parent = oldest[known - 1].digest if known else None
        pieces: list[NewPiece] = []
        for beginning in missing:
            packing, data = self._db.rows.new_piece(beginning.digest, beginning.part)
            pieces.append(NewPiece(beginning.digest, parent, packing, data))
            parent = beginning.digest
        # In one order everywhere, so that two who add the same pieces wait and do not deadlock.
        return sorted(pieces, key=lambda piece: piece.digest)

    def remember(self, whole: Split) -> None:
        """Note that the pieces of an input are there."""
        for beginning in whole.newest:
            self._known[beginning.digest] = None
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Know nothing any more."""
        self._known.clear()

    async def _longest_known(self, ends: Sequence[Beginning]) -> int:
        # A conversation grows at its end, so the longest known beginning is one of the last.
        for count in range(len(ends), 0, -1):
            if ends[count - 1].digest in self._known:
                return count
        digests = [beginning.digest for beginning in ends]
        rows = await self._db.read("known_pieces", digests=digests)
        there = {digest for (digest,) in rows}
        for count in range(len(ends), 0, -1):
            if digests[count - 1] in there:
                return count
        return 0
