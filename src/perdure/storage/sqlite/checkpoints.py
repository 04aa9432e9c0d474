from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence

from perdure.journal.checkpoint import Checkpoint, Saved, check_key, compare
from perdure.storage.checkpoint_rows import checkpoint_of, checkpoint_row, run_number_of
from perdure.storage.sqlite.database import Database


class SqliteCheckpoints:
    """The checkpoints of runs, in one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load_checkpoint(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint, or None when there is none, or no such run."""
        check_key(run_id, checkpoint_id)
        row = self._db.read_row("read_checkpoint", run_id=run_id, checkpoint_id=checkpoint_id)
        return None if row is None else checkpoint_of(self._db.rows.vault, run_id, row)

    async def list_checkpoints(self, run_id: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a run, in the order in which they were created."""
        return await asyncio.to_thread(self._listed, run_id)

    def _listed(self, run_id: str) -> Sequence[Checkpoint]:
        vault = self._db.rows.vault
        with self._db.apart() as connection:
            rows = self._db.run(connection, "list_checkpoints", {"run_id": run_id})
            return [checkpoint_of(vault, run_id, row) for row in rows]

    async def save_checkpoint(self, checkpoint: Checkpoint) -> Saved:
        """Write a checkpoint if it goes on from the one that is there.

        Durable when it returns: the checkpoint, fsynced.
        If it raises: what `validate` or `compare` raises, `UnknownRun`, `RunErased`, or a
        `StorageError`, and nothing was written.
        """
        checkpoint.validate()
        await self._db.note_key()
        vault, run_id = self._db.rows.vault, checkpoint.run_id
        row = checkpoint_row(vault, checkpoint)

        def job(connection: sqlite3.Connection) -> Saved:
            found = self._db.run(connection, "find_checkpointed", row).fetchone()
            key = {**row, "run_number": run_number_of(run_id, found)}
            stored = self._db.run(connection, "find_checkpoint", key).fetchone()
            there = None if stored is None else checkpoint_of(vault, run_id, stored)
            saved = compare(there, checkpoint)
            if saved is Saved.CREATED:
                self._db.run(connection, "insert_checkpoint", row)
            elif saved is Saved.ADVANCED:
                self._db.run(connection, "advance_checkpoint", key)
            return saved

        return await self._db.write(job, f"save_checkpoint {checkpoint.checkpoint_id}")

    async def remove_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint; nothing happens when there is none.

        Durable when it returns: that it is gone, fsynced.
        """
        check_key(run_id, checkpoint_id)
        row = {"run_id": run_id, "checkpoint_id": checkpoint_id}
        await self._db.write(
            lambda connection: self._db.run(connection, "remove_checkpoint", row).rowcount,
            f"remove_checkpoint {checkpoint_id}",
        )
