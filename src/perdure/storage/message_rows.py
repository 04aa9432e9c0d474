from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.engine.store import RunState
from perdure.errors import MessageConflict, MessageTaken, RunEnded, RunErased, UnknownRun
from perdure.inbox import Message, NewMessage
from perdure.storage.rows import signed, unsigned
from perdure.storage.vault import Vault
from perdure.wording import printable


def message_row(vault: Vault, message: NewMessage, edition: int = 1) -> dict[str, Any]:
    """Return the row of a message, but for the run that it is of; its payload passes the vault."""
    place = payload_of(message.run_id, message.message_id, message.name, edition)
    return {
        "run_id": message.run_id,
        "message_id": message.message_id,
        "name": message.name,
        "edition": edition,
        "payload": vault.seal(message.payload_json, place),
        "sent_by": printable(message.sent_by),
        "sent_at": message.sent_at,
    }


def archived_row(vault: Vault, run_id: str, message: Message) -> dict[str, Any]:
    """Return the row of a message that a run had in another store."""
    step_id, sequence = message.taken_by or (None, None)
    row = msgspec.structs.asdict(message)
    if message.payload_json is not None:
        place = payload_of(run_id, message.message_id, message.name, message.edition)
        row["payload"] = vault.seal(message.payload_json, place)
    return {
        "payload": None,
        **row,
        "run_id": run_id,
        "taken_step": step_id,
        "taken_sequence": None if sequence is None else signed(sequence),
    }


def message_of(vault: Vault, run_id: str, row: Sequence[Any]) -> Message:
    """Return a message from its row without its number.

    Raises `StorageCorrupt` where its payload is not what was written there.
    """
    message_id, name, edition, stored, sent_by, sent_at, step_id, sequence, taken_at = row
    payload = None
    if stored is not None:
        payload = vault.unseal(bytes(stored), payload_of(run_id, message_id, name, edition))
    taken_by = None if step_id is None else (step_id, unsigned(sequence))
    return Message(message_id, name, edition, payload, sent_by, sent_at, taken_by, taken_at)


def recipient_of(run_id: str, found: Sequence[Any] | None) -> int:
    """Return the number of the run that a message is to reach.

    `found` is the run's number and state, who erased it and why. Raises `UnknownRun`, `RunErased`
    or `RunEnded`.
    """
    if found is None:
        raise UnknownRun(f"there is no run {run_id!r} in this store")
    run_number, state, by, why = found
    if by is not None:
        raise RunErased(run_id, by=by, why=why)
    if RunState(state).ended:
        raise RunEnded(run_id, state)
    return run_number


def edition_of(there: Message, message: NewMessage, *, edit: bool) -> int | None:
    """Return the edition that a message is to be written in over the one that is there.

    None where there is nothing to be written. Raises `MessageConflict` or `MessageTaken`.
    """
    if (there.name, there.payload_json) == (message.name, message.payload_json):
        return None
    if there.name != message.name or not edit:
        raise MessageConflict(
            f"run {message.run_id} was sent another message under the id {message.message_id!r}:"
            " give this one its own, or edit the other"
        )
    if there.taken_at is not None:
        raise taken(message.run_id, message.message_id)
    return there.edition + 1


def taken(run_id: str, message_id: str) -> MessageTaken:
    """Return the error of a message that can neither be edited nor withdrawn."""
    return MessageTaken(f"run {run_id} has taken the message {message_id!r} already")


def taking_row(message: Message) -> dict[str, Any]:
    """Return which message is taken, as the parameters of the statement that notes it."""
    return {
        "message_id": message.message_id,
        "edition": message.edition,
        "sent_at": message.sent_at,
    }


def payload_of(run_id: str, message_id: str, name: str, edition: int) -> str:
    """Return the place of what a message says, with what else its row says."""
    return f"the payload of message {run_id}/{message_id}|{name}|{edition}"
