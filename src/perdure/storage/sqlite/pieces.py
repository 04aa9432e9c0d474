from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from perdure.storage.packing import packed_apart
from perdure.storage.pieces import Beginning, Split, beginnings
from perdure.storage.rows import Rows
from perdure.storage.sqlite.database import Database

Queries = Mapping[str, str]


async def lifted(db: Database, *wholes: Split) -> Sequence[Split]:
    """Return documents whose large parts are in blobs, but for pieces that the store knows.

    Before the transaction that writes them: should such a piece be erased until then, it is kept in
    the database.
    """
    if not db.blobs.concern(wholes):
        return await packed_apart(wholes)
    wholes = tuple(_unfolded(db, whole) for whole in await db.blobs.lift_rests(wholes))
    missing: dict[bytes, Beginning] = {}
    for whole in wholes:
        for beginning in reversed(whole.newest):
            if beginning.digest in missing or _is_known(db, beginning):
                break
            missing[beginning.digest] = beginning
    there = {one.digest: one for one in await db.blobs.lift_pieces([*missing.values()])}
    return [
        msgspec.structs.replace(
            whole, newest=[there.get(beginning.digest, beginning) for beginning in whole.newest]
        )
        for whole in wholes
    ]


def _unfolded(db: Database, whole: Split) -> Split:
    """Return a document with all of its beginnings, unless the store knows one of the newest."""
    older = whole.cuts[: len(whole.cuts) - len(whole.newest)]
    if not older or any(_is_known(db, beginning) for beginning in whole.newest):
        return whole
    return msgspec.structs.replace(
        whole, newest=[*beginnings(whole.document, older), *whole.newest]
    )


def _is_known(db: Database, beginning: Beginning) -> bool:
    return bool(db.read("find_piece", digest=db.rows.name(beginning.digest)))


def keep(connection: sqlite3.Connection, sql: Queries, rows: Rows, whole: Split) -> int | None:
    """Write the pieces that the store does not know yet; return the last one's number.

    Returns None when there are no cuts.
    """
    known, parent = _longest_known(connection, sql, rows, whole.newest)
    missing = whole.newest[known:]
    older = whole.cuts[: len(whole.cuts) - len(whole.newest)]
    if older and parent is None:
        oldest = beginnings(whole.document, older)
        known, parent = _longest_known(connection, sql, rows, oldest)
        missing = oldest[known:] + missing
    for beginning in missing:
        name, packing, data = rows.new_piece(beginning)
        row = {"digest": name, "parent": parent, "packing": packing, "data": data}
        ((parent,),) = connection.execute(sql["insert_piece"], row).fetchall()
    return parent


def _longest_known(
    connection: sqlite3.Connection, sql: Queries, rows: Rows, ends: Sequence[Beginning]
) -> tuple[int, int | None]:
    # A conversation grows at its end, so the longest known beginning is one of the last.
    for count in range(len(ends), 0, -1):
        row = {"digest": rows.name(ends[count - 1].digest)}
        found = connection.execute(sql["find_piece"], row).fetchone()
        if found is not None:
            return count, int(found[0])
    return 0, None
