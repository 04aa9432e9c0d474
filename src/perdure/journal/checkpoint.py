from __future__ import annotations

import enum
from typing import Final

import msgspec

from perdure.canonical import check_json
from perdure.errors import (
    CheckpointConflict,
    CheckpointTooLarge,
    InvalidCheckpoint,
    InvalidInvocation,
    InvalidPayload,
    StaleCheckpoint,
)
from perdure.ids import check_identifier

STATE_LIMIT_BYTES: Final = 2 * 1024 * 1024
"""The largest state of a checkpoint."""

NUMBER_LIMIT: Final = (1 << 63) - 1
"""The largest revision and the largest cursor."""


class CheckpointKind(enum.StrEnum):
    """What a checkpoint is of: a stream of events, or a run that waits for an approval."""

    STREAM = "stream"
    APPROVAL = "approval"


class Saved(enum.StrEnum):
    """What saving came to; of a duplicate, nothing was written."""

    CREATED = "created"
    ADVANCED = "advanced"
    DUPLICATE = "duplicate"


class Checkpoint(msgspec.Struct, frozen=True):
    """How far something in a run has come, and what it needs to go on from there.

    `revision` begins at 1 or above and grows with each save. `cursor` is how many events of a
    stream were delivered, and 0 for an approval. `state_json` is one JSON document as UTF-8 bytes,
    1 byte to 2 MiB.
    """

    run_id: str
    checkpoint_id: str
    kind: CheckpointKind
    revision: int
    cursor: int
    state_json: bytes

    @property
    def key(self) -> tuple[str, str]:
        """What a store keeps it under: run and checkpoint id."""
        return self.run_id, self.checkpoint_id

    def validate(self) -> None:
        """Check everything; raise `InvalidCheckpoint`, or `CheckpointTooLarge` for the state."""
        check_key(self.run_id, self.checkpoint_id)
        what = f"the checkpoint {self.run_id}/{self.checkpoint_id}"
        if type(self.kind) is not CheckpointKind:
            raise InvalidCheckpoint(f"the kind {self.kind!r} of {what} is not a CheckpointKind")
        for name, number, least in (("revision", self.revision, 1), ("cursor", self.cursor, 0)):
            # A bool is an int to Python, and not to the wire.
            if type(number) is not int or not least <= number <= NUMBER_LIMIT:
                raise InvalidCheckpoint(
                    f"the {name} {number!r} of {what} is not a whole number from {least} to"
                    f" {NUMBER_LIMIT}"
                )
        if self.kind is CheckpointKind.APPROVAL and self.cursor:
            raise InvalidCheckpoint(f"{what} is of an approval, whose cursor is 0")
        if not 1 <= len(self.state_json) <= STATE_LIMIT_BYTES:
            raise CheckpointTooLarge(
                f"the state of {what} has {len(self.state_json)} bytes, and it holds 1 to"
                f" {STATE_LIMIT_BYTES}: store large data elsewhere and keep a reference to it"
            )
        try:
            check_json(self.state_json, what=f"the state of {what}")
        except InvalidPayload as error:
            raise InvalidCheckpoint(str(error)) from error


def compare(stored: Checkpoint | None, checkpoint: Checkpoint) -> Saved:
    """Return what saving a valid checkpoint over the stored one comes to.

    Raises `StaleCheckpoint` for a lower revision than the stored one. Raises `CheckpointConflict`
    for the same revision with anything else in it, and for a higher one with another kind or a
    smaller cursor. Revisions may leave gaps.
    """
    if stored is None:
        return Saved.CREATED
    what = f"the checkpoint {checkpoint.run_id}/{checkpoint.checkpoint_id}"
    if checkpoint.revision < stored.revision:
        raise StaleCheckpoint(
            f"{what} is at revision {stored.revision}, after {checkpoint.revision}: load it and go"
            " on from there"
        )
    if checkpoint.revision == stored.revision:
        if checkpoint == stored:
            return Saved.DUPLICATE
        raise CheckpointConflict(
            f"{what} was saved at revision {stored.revision} with something else in it, by somebody"
            " else: load it and go on from there"
        )
    if checkpoint.kind is not stored.kind:
        raise CheckpointConflict(
            f"{what} is of kind {stored.kind} and stays so: save {checkpoint.kind} under another id"
        )
    if checkpoint.cursor < stored.cursor:
        raise CheckpointConflict(
            f"{what} has its cursor at {stored.cursor}, which never goes back to"
            f" {checkpoint.cursor}: load it and go on from there"
        )
    return Saved.ADVANCED


def check_key(run_id: str, checkpoint_id: str) -> None:
    """Check the ids of a checkpoint; raise `InvalidCheckpoint`."""
    try:
        check_identifier(run_id, "run id")
        check_identifier(checkpoint_id, "checkpoint id")
    except InvalidInvocation as error:
        raise InvalidCheckpoint(str(error)) from error
