from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.approvals import Answer, Approval, NewAnswer, NewApproval, answered
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.storage.approval_rows import (
    answer_row,
    approval_of,
    approval_row,
    check_answerable,
)
from perdure.storage.postgres.database import Transaction
from perdure.storage.postgres.inbox import PostgresInbox


class PostgresApprovals(PostgresInbox):
    """What runs ask of people, in one PostgreSQL schema."""

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
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`.
        """
        awaits = answered(approval.item_id)
        timer = self._db.rows.new_timer(fence, invocation, input_sha256, wake_at, awaits)
        row = {**timer, **approval_row(self._db.rows.vault, fence.run_id, approval)}

        async def job(transaction: Transaction, again: bool) -> bool:  # noqa: FBT001
            del again
            begun = await transaction.run("begin_timer", row)
            await transaction.run("insert_approval", row)
            return bool(begun)

        if not await self._db.transact(job, f"begin_approval {approval.item_id}"):
            raise self._db.fenced_off(fence.run_id)

    async def read_approval(self, run_id: str, item_id: str) -> Approval | None:
        """Return what a run asked for, or None."""
        row = await self._db.read_row("read_approval", run_id=run_id, item_id=item_id)
        return None if row is None else approval_of(self._db.rows.vault, row)

    async def list_approvals(
        self, run_id: str | None = None, *, open_only: bool = True, limit: int = 100
    ) -> Sequence[Approval]:
        """Return what runs asked for, oldest first; of one run, or of any."""
        name = "open_approvals" if open_only else "list_approvals"
        rows = await self._db.read(name, run_id=run_id, limit=limit)
        return [approval_of(self._db.rows.vault, row) for row in rows]

    async def answer_approval(
        self, run_id: str, item_id: str, answer: NewAnswer, expect_digest: str | None = None
    ) -> Approval:
        """Write an answer unless there is one, and let the run go on; return how it stands.

        Durable when it returns: the answer, fsynced.
        If it raises: what `check_answerable` raises, and nothing was written, or a `StorageError`;
        after a `StorageBusy`, nobody knows whether it was.
        """
        await self._db.note_key()
        row = answer_row(self._db.rows.vault, run_id, item_id, answer)
        row["awaits"] = answered(item_id)

        async def job(transaction: Transaction, again: bool) -> Approval:  # noqa: FBT001
            # First: its run neither ends nor goes on before the answer is there.
            await transaction.run("lock_run", row)
            there = await self._there(transaction, row)
            if again and there is not None and _is_own(there, answer.answer, row):
                return there
            check_answerable(run_id, item_id, there, expect_digest)
            await transaction.run("answer_approval", row)
            await transaction.run("tell_answered", row)
            written = await self._there(transaction, row)
            assert written is not None
            return written

        written = await self._db.transact(job, f"answer_approval {item_id}")
        self.hints.tell()
        return written

    async def _there(self, transaction: Transaction, row: Mapping[str, Any]) -> Approval | None:
        found = await transaction.run("read_approval", row)
        return approval_of(self._db.rows.vault, found[0]) if found else None


def _is_own(there: Approval, answer: Answer, row: Mapping[str, Any]) -> bool:
    """Tell whether an answer is the one that the caller itself wrote."""
    written = (there.answer, there.answered_by, there.answered_at)
    return written == (answer, row["answered_by"], row["answered_at"])
