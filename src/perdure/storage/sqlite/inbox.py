from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from perdure.fence import Fence
from perdure.inbox import Message, NewMessage
from perdure.journal.store import NewRecord
from perdure.storage.message_rows import (
    edition_of,
    message_of,
    message_row,
    recipient_of,
    taken,
    taking_row,
)
from perdure.storage.rows import fence_row, signed
from perdure.storage.sqlite.journal import SqliteJournal


class SqliteInbox(SqliteJournal):
    """The messages that reach runs, in one SQLite file."""

    async def send_message(self, message: NewMessage, *, edit: bool = False) -> Message:
        """Put a message into the inbox of a run that has not ended, and return how it stands.

        Durable when it returns: the message, fsynced.
        If it raises: `UnknownRun`, `RunErased`, `RunEnded`, `MessageConflict`, `MessageTaken` or a
        `StorageError`, and nothing was written.
        """
        await self._db.note_key()
        vault, run_id = self._db.rows.vault, message.run_id
        new = message_row(vault, message)

        def job(connection: sqlite3.Connection) -> Message:
            found = self._db.run(connection, "find_recipient", new).fetchone()
            stored = self._db.run(connection, "find_message", new).fetchone()
            if stored is None:
                run_number = recipient_of(run_id, found)
                row = {**new, "run_number": run_number}
                self._db.run(connection, "insert_message", row)
            else:
                number, *rest = stored
                there = message_of(vault, run_id, rest)
                edition = edition_of(there, message, edit=edit)
                if edition is None:
                    return there
                row = {**message_row(vault, message, edition), "message_number": number}
                self._db.run(connection, "edit_message", row)
            _, *rest = self._db.run(connection, "find_message", row).fetchone()
            return message_of(vault, run_id, rest)

        return await self._db.write(job, f"send_message {message.name}")

    async def withdraw_message(self, run_id: str, message_id: str) -> bool:
        """Take back a message that nobody has taken; return whether it was there.

        Durable when it returns: that it is gone, fsynced.
        If it raises: `MessageTaken` or a `StorageError`.
        """
        row = {"run_id": run_id, "message_id": message_id}

        def job(connection: sqlite3.Connection) -> bool:
            if self._db.run(connection, "withdraw_message", row).rowcount == 1:
                return True
            if self._db.run(connection, "find_message", row).fetchone() is not None:
                raise taken(run_id, message_id)
            return False

        return await self._db.write(job, "withdraw_message")

    async def next_message(self, run_id: str, name: str) -> Message | None:
        """Return the oldest message of a name that nobody has taken, or None."""
        row = self._db.read_row("next_message", run_id=run_id, awaits=name)
        return None if row is None else message_of(self._db.rows.vault, run_id, row[1:])

    async def list_messages(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a run, those that were taken too, in the order they came."""
        vault = self._db.rows.vault
        rows = self._db.read("list_messages", run_id=run_id)
        return [message_of(vault, run_id, row[1:]) for row in rows]

    async def take_message(self, fence: Fence, message: Message, record: NewRecord) -> bool:
        """Take a message and write the record of the operation that it ends, both or neither.

        Durable when it returns: both, fsynced, if the message was there still.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        append = await self.append(fence, record)
        invocation = record.invocation
        row = {
            **fence_row(fence),
            **taking_row(message),
            "step_id": invocation.step_id,
            "sequence": signed(invocation.sequence),
            "finished_at": record.finished_at,
        }

        def job(connection: sqlite3.Connection) -> bool | None:
            if not self._db.run(connection, "fence_holds", row).fetchone()[0]:
                return None
            if self._db.run(connection, "take_message", row).rowcount != 1:
                return False
            return append(connection)

        what = f"take_message {invocation.step_id}/{invocation.sequence}"
        landed = await self._db.write(job, what)
        if landed is None:
            raise self._db.fenced_off(fence.run_id)
        return landed

    async def end_wait(self, fence: Fence, awaits: str, record: NewRecord) -> bool:
        """Write the record of a wait that ends without a message, unless one has come meanwhile.

        Durable when it returns: the record, fsynced, if it was written.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        append = await self.append(fence, record)
        row = {**fence_row(fence), "awaits": awaits}

        def job(connection: sqlite3.Connection) -> bool | None:
            found = self._db.run(connection, "has_come", row).fetchone()
            if found is None:
                return None
            return not found[0] and append(connection)

        what = f"end_wait {record.invocation.step_id}/{record.invocation.sequence}"
        written = await self._db.write(job, what)
        if written is None:
            raise self._db.fenced_off(fence.run_id)
        return written
