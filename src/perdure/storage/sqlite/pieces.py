from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from perdure.storage.pieces import Beginning, Split, beginnings
from perdure.storage.rows import Rows

Queries = Mapping[str, str]


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
        name, packing, data = rows.new_piece(beginning.digest, beginning.part)
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
