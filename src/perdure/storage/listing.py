from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.engine.store import RunRow
from perdure.errors import StorageError
from perdure.storage.blobs import Blobs
from perdure.storage.documents import Piece
from perdure.storage.places import output_of
from perdure.storage.rows import Rows

_AT_ONCE: Final = 8


class Listing:
    """Runs as a query returned them, which become rows that say what of them cannot be read."""

    def __init__(self, rows: Rows, blobs: Blobs, found: Sequence[Sequence[Any]]) -> None:
        self._rows = rows
        self._blobs = blobs
        self._found = found
        self._places = asyncio.Semaphore(_AT_ONCE)

    @property
    def pieces(self) -> Sequence[Any]:
        """What names the last pieces of their outputs, each once."""
        return [*{row[-3]: None for row in self._found if row[-3] is not None}]

    async def runs(self, found: Sequence[tuple[Any, ...]]) -> list[RunRow]:
        """Return the runs, with what was found of their pieces, in any order.

        That is what names a piece, what names the one before it, and the piece.
        """
        links = {name: (before, tuple(piece)) for name, before, *piece in found}
        return [*await asyncio.gather(*(self._run(row, links) for row in self._found))]

    async def _run(self, row: Sequence[Any], links: Mapping[Any, Any]) -> RunRow:
        *facts, last, packing, rest = row
        if rest is None:
            return self._rows.listed(facts, None, None)
        async with self._places:
            try:
                pieces = _chain(links, last)
                place = output_of(facts[0])
                output = await self._blobs.document(place, pieces, packing, rest)
            except StorageError as error:
                # What cannot be read must not keep anybody from the other runs.
                return self._rows.listed(facts, None, error)
        return self._rows.listed(facts, output, None)


def _chain(links: Mapping[Any, Any], last: Any) -> list[Piece]:
    """Return the pieces up to the last one; of a damaged chain, those up to where it breaks."""
    pieces: list[Piece] = []
    seen = set[Any]()
    while last in links and last not in seen:
        seen.add(last)
        last, piece = links[last]
        pieces.append(piece)
    return pieces[::-1]
