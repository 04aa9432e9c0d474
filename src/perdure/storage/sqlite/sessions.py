from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.errors import LeaseLost
from perdure.session.channel import HistoryPage, Snapshot
from perdure.session.message import WireMessage
from perdure.session.store import SessionOutcome, SessionRow, SessionWrite
from perdure.storage.session_rows import (
    before_of,
    check_session,
    deliveries_of,
    number_of,
    page_of,
    session_row,
    snapshot_of,
    version_of,
)
from perdure.storage.session_writes import (
    EPHEMERAL_ROWS,
    EPHEMERAL_SECONDS,
    SessionBatch,
    Steps,
)
from perdure.storage.sqlite.database import Database

_ROWS: Final = 200
_PAUSE_SECONDS: Final = 0.005
"""How long another process has between two transactions to get the write lock."""


class SqliteSessions:
    """The messages of sessions, in one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def write_session(self, writes: Sequence[SessionWrite]) -> Sequence[SessionOutcome]:
        """Write to sessions in one transaction, in this order; return what became of each.

        Durable when it returns: all that is not refused, fsynced.
        If it raises: a `StorageError`, and nothing was written.
        """
        await self._db.note_key()
        batch = SessionBatch(self._db.rows.vault, writes)

        def job(connection: sqlite3.Connection) -> Sequence[SessionOutcome]:
            now = self._db.clock.now()
            outcomes = _follow(self._db, connection, batch.steps(now))
            if batch.publishes:
                row = {"before": now - EPHEMERAL_SECONDS, "limit": EPHEMERAL_ROWS}
                self._db.run(connection, "drop_ephemeral", row)
            return outcomes

        outcomes = await self._db.write(job, "write_session")
        return [
            self._db.fenced_off(outcome.run_id) if isinstance(outcome, LeaseLost) else outcome
            for outcome in outcomes
        ]

    async def session_deliveries(
        self, session: str, after: str, limit: int
    ) -> Sequence[WireMessage]:
        """Return what has changed since a version; raises `ContinuityLost`."""
        check_session(session)
        number = number_of(after)
        row = {"session": session, "after": number or 0, "limit": limit}
        rows = self._db.read("read_deliveries", **row)
        return deliveries_of(self._db.rows.vault, session, number, limit, rows)

    async def session_page(self, session: str, before: str | None, limit: int) -> HistoryPage:
        """Return the newest stored messages with a serial lower than `before`, or of all."""
        page, _ = self._page(session, before, limit)
        return page

    async def session_snapshot(self, session: str, limit: int) -> Snapshot:
        """Return the newest messages as they stand, and the version that they stand at."""
        return snapshot_of(*self._page(session, None, limit))

    async def session_heads(self, sessions: Sequence[str]) -> Mapping[str, str]:
        """Return the last version of each session; one that nothing was written to is left out."""
        for session in sessions:
            check_session(session)
        names = msgspec.json.encode(sessions).decode()
        rows = self._db.read("session_heads", sessions=names)
        return {session: version_of(head) for session, head in rows}

    async def list_sessions(self, limit: int) -> Sequence[SessionRow]:
        """Return the sessions that were written to last, the last one first."""
        return [session_row(row) for row in self._db.read("list_sessions", limit=limit)]

    async def erase_session(self, session: str) -> bool:
        """Delete all messages of a session; return whether there were any.

        Durable when it returns: the deletions, fsynced. After a `StorageError`, erasing again
        finishes what was begun.
        """
        check_session(session)
        found = await self._db.write(
            lambda connection: self._db.run(
                connection, "erase_session", {"session": session}
            ).fetchone(),
            "erase_session",
        )
        if found is None:
            return False
        row = {"session_number": found[0]}
        while self._db.read("is_erasing", **row) == [(1,)]:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._db.write(
                lambda connection: erase_messages(self._db, connection), "erase_session"
            )
        await self._db.scrub()
        return True

    def _page(self, session: str, before: str | None, limit: int) -> tuple[HistoryPage, str]:
        check_session(session)
        row = {"session": session, "before": before_of(before), "limit": limit + 1}
        rows = self._db.read("read_page", **row)
        return page_of(self._db.rows.vault, session, limit, rows)


def erase_messages(database: Database, connection: sqlite3.Connection) -> int:
    """Delete some messages of sessions that were erased; return how many rows."""
    row = {"limit": _ROWS}
    gone = database.run(connection, "erase_session_messages", row).rowcount
    gone += database.run(connection, "erase_session_appends", row).rowcount
    database.run(connection, "end_erasing", {})
    return gone


def _follow(
    database: Database, connection: sqlite3.Connection, steps: Steps
) -> Sequence[SessionOutcome]:
    try:
        name, rows = next(steps)
        while True:
            found: list[tuple[Any, ...]] = []
            for row in rows:
                found += database.run(connection, name, row)
            name, rows = steps.send(found)
    except StopIteration as end:
        return end.value
