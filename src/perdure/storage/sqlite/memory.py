from __future__ import annotations

import sqlite3
import weakref
from typing import Final

_VFS: Final = "memdb"


class Memory:
    """A database in the memory of this process: every object of one name names the same.

    What is in it lasts until the last object and the last connection are gone, and no other process
    sees any of it: it is for tests.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Its content would go with the last connection, also between two Apps.
        self._anchor = self.connect(0.0)
        weakref.finalize(self, self._anchor.close)

    def __str__(self) -> str:
        return f"memory:{self._name}"

    @property
    def empty(self) -> bool:
        """Whether nobody has made anything in it yet."""
        ((version,),) = self._anchor.execute("PRAGMA user_version").fetchall()
        return version == 0

    def connect(self, busy_seconds: float) -> sqlite3.Connection:
        """Open a connection that any thread may use, one at a time."""
        return sqlite3.connect(
            f"file:/{self._name}?vfs={_VFS}",
            uri=True,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
