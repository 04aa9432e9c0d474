from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.journal.checkpoint import Checkpoint, Saved, check_key, compare
from perdure.storage.checkpoint_rows import checkpoint_of, checkpoint_row, run_number_of
from perdure.storage.postgres.database import Database, Transaction


class PostgresCheckpoints:
    """The checkpoints of runs, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load_checkpoint(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint, or None when there is none, or no such run."""
        check_key(run_id, checkpoint_id)
        row = await self._db.read_row("read_checkpoint", run_id=run_id, checkpoint_id=checkpoint_id)
        return None if row is None else checkpoint_of(self._db.rows.vault, run_id, row)

    async def list_checkpoints(self, run_id: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a run, in the order in which they were created."""
        rows = await self._db.read("list_checkpoints", run_id=run_id)
        return [checkpoint_of(self._db.rows.vault, run_id, row) for row in rows]

    async def save_checkpoint(self, checkpoint: Checkpoint) -> Saved:
        """Write a checkpoint if it goes on from the one that is there.

        Durable when it returns: the checkpoint, fsynced.
        If it raises: what `validate` or `compare` raises, `UnknownRun` or `RunErased`, and nothing
        was written; after a `StorageBusy`, nobody knows whether it was.
        """
        checkpoint.validate()
        await self._db.note_key()
        row = checkpoint_row(self._db.rows.vault, checkpoint)
        earlier = Saved.DUPLICATE

        async def job(transaction: Transaction, again: bool) -> Saved:  # noqa: FBT001
            nonlocal earlier
            found = await transaction.run("find_checkpointed", row)
            run_number = run_number_of(checkpoint.run_id, found[0] if found else None)
            row["run_number"] = run_number
            saved = await self._save(transaction, checkpoint, row)
            # What is there already may be what was committed before the connection was lost.
            if not again or saved is not Saved.DUPLICATE:
                earlier = saved
            return earlier

        return await self._db.transact(job, f"save_checkpoint {checkpoint.checkpoint_id}")

    async def remove_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint; nothing happens when there is none.

        Durable when it returns: that it is gone, fsynced.
        """
        check_key(run_id, checkpoint_id)
        row = {"run_id": run_id, "checkpoint_id": checkpoint_id}
        await self._db.write("remove_checkpoint", row, f"remove_checkpoint {checkpoint_id}")

    async def _save(
        self, transaction: Transaction, checkpoint: Checkpoint, row: dict[str, Any]
    ) -> Saved:
        while True:
            stored = await transaction.run("find_checkpoint", row)
            there = None
            if stored:
                there = checkpoint_of(self._db.rows.vault, checkpoint.run_id, stored[0])
            saved = compare(there, checkpoint)
            if saved is Saved.ADVANCED:
                await transaction.run("advance_checkpoint", row)
            # Somebody else may create it at the same moment: it is looked at again then.
            elif saved is Saved.CREATED and not await transaction.change("insert_checkpoint", row):
                continue
            return saved
