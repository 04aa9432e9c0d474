from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from perdure.approvals import Approval, NewAnswer, NewApproval, answered
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.storage.approval_rows import (
    answer_row,
    approval_of,
    approval_row,
    check_answerable,
)
from perdure.storage.sqlite.inbox import SqliteInbox


class SqliteApprovals(SqliteInbox):
    """What runs ask of people, in one SQLite file."""

    async def begin_approval(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        approval: NewApproval,
    ) -> None:
        """Write what is asked for, and that the wait for an answer begins, under the fence.

        Durable when it returns: both, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        awaits = answered(approval.item_id)
        timer = self._db.rows.new_timer(fence, invocation, input_sha256, wake_at, awaits)
        row = {**timer, **approval_row(self._db.rows.vault, fence.run_id, approval)}

        def job(connection: sqlite3.Connection) -> bool:
            begun = self._db.run(connection, "begin_timer", row).rowcount == 1
            return begun and self._db.run(connection, "insert_approval", row).rowcount == 1

        await self._fenced(fence, job, f"begin_approval {approval.item_id}")

    async def read_approval(self, run_id: str, item_id: str) -> Approval | None:
        """Return what a run asked for, or None."""
        row = self._db.read_row("read_approval", run_id=run_id, item_id=item_id)
        return None if row is None else approval_of(self._db.rows.vault, row)

    async def list_approvals(
        self, run_id: str | None = None, *, open_only: bool = True, limit: int = 100
    ) -> Sequence[Approval]:
        """Return what runs asked for, oldest first; of one run, or of any."""
        name = "open_approvals" if open_only else "list_approvals"
        vault = self._db.rows.vault
        return [approval_of(vault, row) for row in self._db.read(name, run_id=run_id, limit=limit)]

    async def answer_approval(
        self, run_id: str, item_id: str, answer: NewAnswer, expect_digest: str | None = None
    ) -> Approval:
        """Write an answer unless there is one, and let the run go on; return how it stands.

        Durable when it returns: the answer, fsynced.
        If it raises: what `check_answerable` raises, or a `StorageError`; nothing was written.
        """
        await self._db.note_key()
        vault = self._db.rows.vault
        row = {**answer_row(vault, run_id, item_id, answer), "awaits": answered(item_id)}

        def find(connection: sqlite3.Connection) -> Approval | None:
            found = self._db.run(connection, "read_approval", row).fetchone()
            return None if found is None else approval_of(vault, found)

        def job(connection: sqlite3.Connection) -> Approval:
            check_answerable(run_id, item_id, find(connection), expect_digest)
            self._db.run(connection, "answer_approval", row)
            self._db.run(connection, "tell_answered", row)
            written = find(connection)
            assert written is not None
            return written

        return await self._db.write(job, f"answer_approval {item_id}")
