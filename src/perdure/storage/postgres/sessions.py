from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.errors import LeaseLost
from perdure.session.channel import HistoryPage, Snapshot
from perdure.session.message import WireMessage
from perdure.session.store import SessionOutcome, SessionRow, SessionWrite
from perdure.storage.postgres.arrays import columns_of
from perdure.storage.postgres.database import Database, Transaction
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

_ROWS: Final = 200
_PAUSE_SECONDS: Final = 0.005

_KINDS: Final = {
    "session": "text",
    "session_number": "bigint",
    "serial": "bigint",
    "version": "bigint",
    "head": "bigint",
    "changed_at": "double",
    "created_at": "double",
    "message_id": "text",
    "name": "text",
    "client_id": "text",
    "run_id": "text",
    "holder": "text",
    "generation": "bigint",
    "ephemeral": "boolean",
    "document": "bytea",
}
"""What the columns of the rows are that are sent together."""


class PostgresSessions:
    """The messages of sessions, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def write_session(self, writes: Sequence[SessionWrite]) -> Sequence[SessionOutcome]:
        """Write to sessions in one transaction, in this order; return what became of each.

        Durable when it returns: all that is not refused, fsynced.
        If it raises: a `StorageError`; after a `StorageBusy`, nobody knows whether it was written.
        """
        await self._db.note_key()
        batch = SessionBatch(self._db.rows.vault, writes)
        doubted = False

        async def job(transaction: Transaction, again: bool) -> Sequence[SessionOutcome]:  # noqa: FBT001
            nonlocal doubted
            del again
            now = self._db.clock.now()
            outcomes = await _follow(transaction, batch.steps(now, doubted=doubted))
            if batch.publishes:
                row = {"before": now - EPHEMERAL_SECONDS, "limit": EPHEMERAL_ROWS}
                await transaction.run("drop_ephemeral", row)
            # What fails before this was surely rolled back.
            doubted = True
            return outcomes

        outcomes = await self._db.transact(job, "write_session")
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
        rows = await self._db.read("read_deliveries", **row)
        return deliveries_of(self._db.rows.vault, session, number, limit, rows)

    async def session_page(self, session: str, before: str | None, limit: int) -> HistoryPage:
        """Return the newest stored messages with a serial lower than `before`, or of all."""
        page, _ = await self._page(session, before, limit)
        return page

    async def session_snapshot(self, session: str, limit: int) -> Snapshot:
        """Return the newest messages as they stand, and the version that they stand at."""
        return snapshot_of(*await self._page(session, None, limit))

    async def session_heads(self, sessions: Sequence[str]) -> Mapping[str, str]:
        """Return the last version of each session; one that nothing was written to is left out."""
        for session in sessions:
            check_session(session)
        rows = await self._db.read("session_heads", sessions=[*sessions])
        return {session: version_of(head) for session, head in rows}

    async def list_sessions(self, limit: int) -> Sequence[SessionRow]:
        """Return the sessions that were written to last, the last one first."""
        return [session_row(row) for row in await self._db.read("list_sessions", limit=limit)]

    async def erase_session(self, session: str) -> bool:
        """Delete all messages of a session; return whether there were any.

        Durable when it returns: the deletions, fsynced. After a `StorageError`, erasing again
        finishes what was begun.
        """
        check_session(session)
        found = await self._db.write("erase_session", {"session": session}, "erase_session")
        if not found:
            return False

        async def job(transaction: Transaction, again: bool) -> int:  # noqa: FBT001
            del again
            return await erase_messages(transaction)

        ((number,),) = found
        while await self._db.read("is_erasing", session_number=number) == [(True,)]:
            await self._db.transact(job, "erase_session")
            await asyncio.sleep(_PAUSE_SECONDS)
        return True

    async def _page(self, session: str, before: str | None, limit: int) -> tuple[HistoryPage, str]:
        check_session(session)
        row = {"session": session, "before": before_of(before), "limit": limit + 1}
        rows = await self._db.read("read_page", **row)
        return page_of(self._db.rows.vault, session, limit, rows)


async def erase_messages(transaction: Transaction) -> int:
    """Delete some messages of sessions that were erased; return how many rows."""
    row = {"limit": _ROWS}
    gone = await transaction.change("erase_session_messages", row)
    gone += await transaction.change("erase_session_appends", row)
    await transaction.run("end_erasing", {})
    return gone


async def _follow(transaction: Transaction, steps: Steps) -> Sequence[SessionOutcome]:
    try:
        name, rows = next(steps)
        while True:
            found = []
            if rows:
                kinds = {column: _KINDS[column] for column in rows[0]}
                found = await transaction.run(name, columns_of(kinds, rows))
            name, rows = steps.send(found)
    except StopIteration as end:
        return end.value
