from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import StorageError
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
from perdure.storage.places import place_of
from perdure.storage.postgres.arrays import Column, columns_of
from perdure.storage.postgres.database import Transaction
from perdure.storage.postgres.hints import Hints
from perdure.storage.postgres.journal import RECORD_COLUMNS, PostgresJournal
from perdure.storage.postgres.pieces import PIECE_COLUMNS
from perdure.storage.rows import split_record, unsigned


class PostgresInbox(PostgresJournal):
    """The messages that reach runs, in one PostgreSQL schema."""

    hints: Hints

    async def send_message(self, message: NewMessage, *, edit: bool = False) -> Message:
        """Put a message into the inbox of a run that has not ended, and return how it stands.

        Durable when it returns: the message, fsynced.
        If it raises: `UnknownRun`, `RunErased`, `RunEnded`, `MessageConflict` or `MessageTaken`,
        and nothing was written, or a `StorageError`; after a `StorageBusy`, nobody knows whether it
        was, and whoever sends the same again learns how it stands.
        """
        await self._db.note_key()

        async def job(transaction: Transaction, again: bool) -> Message:  # noqa: FBT001
            del again
            return await self._send(transaction, message, edit=edit)

        sent = await self._db.transact(job, f"send_message {message.name}")
        self.hints.tell()
        return sent

    async def withdraw_message(self, run_id: str, message_id: str) -> bool:
        """Take back a message that nobody has taken; return whether it was there.

        Durable when it returns: that it is gone, fsynced.
        If it raises: `MessageTaken` or a `StorageError`.
        """
        row = {"run_id": run_id, "message_id": message_id}
        withdrawn = False

        async def job(transaction: Transaction, again: bool) -> bool:  # noqa: FBT001
            del again
            nonlocal withdrawn
            await transaction.run("lock_run", row)
            if await transaction.change("withdraw_message", row):
                withdrawn = True
            elif await transaction.run("find_message", row):
                raise taken(run_id, message_id)
            # What is gone may have been taken back by a try whose answer was lost.
            return withdrawn

        return await self._db.transact(job, "withdraw_message")

    async def next_message(self, run_id: str, name: str) -> Message | None:
        """Return the oldest message of a name that nobody has taken, or None."""
        row = await self._db.read_row("next_message", run_id=run_id, awaits=name)
        return None if row is None else message_of(self._db.rows.vault, run_id, row[1:])

    async def list_messages(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a run, those that were taken too, in the order they came."""
        vault = self._db.rows.vault
        rows = await self._db.read("list_messages", run_id=run_id)
        return [message_of(vault, run_id, row[1:]) for row in rows]

    async def take_message(self, fence: Fence, message: Message, record: NewRecord) -> bool:
        """Take a message and write the record of the operation that it ends, both or neither.

        Durable when it returns: both, fsynced, if the message was there still.
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`; after a `StorageBusy`,
        nobody knows whether they were written, and who takes it once more learns that.
        """
        return await self._end_by("take_message", fence, record, taking_row(message))

    async def end_wait(self, fence: Fence, awaits: str, record: NewRecord) -> bool:
        """Write the record of a wait that ends without a message, unless one has come meanwhile.

        Durable when it returns: the record, fsynced, if it was written.
        If it raises: as `take_message`.
        """
        return await self._end_by("end_wait", fence, record, {"awaits": awaits})

    async def _end_by(
        self, what: str, fence: Fence, record: NewRecord, how: Mapping[str, Any]
    ) -> bool:
        take = self._take if what == "take_message" else self._hear_nothing
        wholes = await self._db.blobs.lift_rests(split_record(record))
        row = {**self._db.rows.record(fence, record, *wholes), **how}
        row["input_piece"], row["payload_piece"] = map(self._db.rows.last, wholes)
        place = f"{record.invocation.step_id}/{record.invocation.sequence}"

        async def write(more: dict[str, list[Any]]) -> bool | None:
            pieces = {name: Column(kind, more[name]) for name, kind in PIECE_COLUMNS.items()}

            async def job(transaction: Transaction, again: bool) -> None:  # noqa: FBT001
                del again
                await take(transaction, row, pieces)

            try:
                await self._db.transact(job, f"{what} {place}")
            except _NotTakenError as refused:
                return None if refused.fenced_off else False
            return True

        landed = await self.pieces.keep(wholes, write)
        # It may have been ended by a try whose answer was lost.
        if landed or await self.recorded_before(row):
            return True
        if landed is None:
            raise self._db.fenced_off(fence.run_id)
        return False

    async def _send(self, transaction: Transaction, message: NewMessage, *, edit: bool) -> Message:
        vault, run_id = self._db.rows.vault, message.run_id
        row = message_row(vault, message)
        # First: the run's row is locked by whoever writes to its inbox, or puts it away.
        found = await transaction.run("find_recipient", row)
        stored = await transaction.run("find_message", row)
        if not stored:
            run_number = recipient_of(run_id, found[0] if found else None)
            await transaction.run("insert_message", {**row, "run_number": run_number})
        else:
            ((number, *rest),) = stored
            there = message_of(vault, run_id, rest)
            edition = edition_of(there, message, edit=edit)
            if edition is None:
                return there
            row = {**message_row(vault, message, edition), "message_number": number}
            await transaction.run("edit_message", row)
        ((_, *rest),) = await transaction.run("find_message", row)
        return message_of(vault, run_id, rest)

    async def _take(
        self, transaction: Transaction, row: Mapping[str, Any], pieces: Mapping[str, Column]
    ) -> None:
        await transaction.run("import_piece", pieces)
        found = await transaction.run("take_message", row)
        if found != [(True,)]:
            raise _NotTakenError(fenced_off=not found)
        await self._append(transaction, row)

    async def _hear_nothing(
        self, transaction: Transaction, row: Mapping[str, Any], pieces: Mapping[str, Column]
    ) -> None:
        del pieces  # what says that nothing came has none
        # First: whoever sends a message locks the run's row as well.
        await transaction.run("lock_run", row)
        found = await transaction.run("has_come", row)
        if found != [(False,)]:
            raise _NotTakenError(fenced_off=not found)
        await self._append(transaction, row)

    async def _append(self, transaction: Transaction, row: Mapping[str, Any]) -> None:
        nothing = {name: Column(kind, []) for name, kind in PIECE_COLUMNS.items()}
        record = {**columns_of(RECORD_COLUMNS, [row]), **nothing}
        ((_, written),) = await transaction.run("append_records", record)
        if not written:
            place = place_of(row["run_id"], row["step_id"], unsigned(row["sequence"]))
            raise StorageError(f"another record of {place} was written before this one")


class _NotTakenError(Exception):
    """Takes a try to take a message back, because it is not there, or its run has another owner."""

    def __init__(self, *, fenced_off: bool) -> None:
        super().__init__()
        self.fenced_off = fenced_off
