from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Final

LOG_PAGES: Final = 4000
"""About how long the log grows, in pages, before it is folded back into the file."""

UNFOLDED_PAGES: Final = 4 * LOG_PAGES
"""How long the log has to be for a commit to fold it, as it does where nobody else gets to it."""

_FIRST_WRITES: Final = 200
_FEWEST_WRITES: Final = 20
_RAISE: Final = 1.5


class Checkpointer:
    """Folds the log back into the file, at a time of the writer's choosing.

    SQLite by itself would do it within a commit. Cutting in between two commits needs no second
    connection, and, unlike a checkpoint beside commits, leaves a log that begins anew.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._writes = 0
        self._enough = _FIRST_WRITES

    def count(self, writes: int) -> None:
        """Count committed writes."""
        self._writes += writes

    def due(self) -> bool:
        """Tell whether the log may have grown long."""
        return self._writes >= self._enough

    def fold(self) -> None:
        """Fold the log, for as much as no reader needs it; no transaction may be open."""
        writes, self._writes = self._writes, 0
        # A log that cannot be folded now goes on growing, and is folded later.
        with suppress(sqlite3.Error):
            checkpoint = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            ((_, pages, folded),) = checkpoint.fetchall()
            if pages == folded > 0:
                # Another process may have begun the log anew: then it only looks short.
                enough = min(writes * LOG_PAGES / pages, self._enough * _RAISE)
                self._enough = max(int(enough), _FEWEST_WRITES)
