from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec

from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.record import Failure, Outcome, Success, Suspended

if TYPE_CHECKING:
    from perdure.journal.checkpoint import Checkpoint, Saved  # most programs need none

_failures = msgspec.json.Decoder(Failure)
_suspensions = msgspec.json.Decoder(Suspended)


class JournalRow(msgspec.Struct, frozen=True, gc=False):
    """One recorded operation as replay needs it: its identity, its digest and what came back.

    `payload` is what `unpack_outcome` reads: the output document of a success, or the packed form
    of another outcome. It is None when it is larger than the store hands out with a whole
    journal; `read_payload` gives it then. `finished_at` is wall seconds, UTC.
    """

    step_id: str
    sequence: int
    kind: str
    handler_id: str
    input_sha256: bytes
    status: str
    payload: bytes | None
    attempt: int
    finished_at: float
    nested: bool


class TimerRow(msgspec.Struct, frozen=True, gc=False):
    """A delay or a wait that was begun and not yet recorded.

    `wake_at` is when it ends by itself, in wall seconds, UTC; None for one that does not. `awaits`
    is the name of the messages that end it before, or None for a delay.
    """

    step_id: str
    sequence: int
    kind: str
    handler_id: str
    input_sha256: bytes
    input_json: bytes
    wake_at: float | None
    awaits: str | None = None


class Journal(msgspec.Struct, frozen=True):
    """All that a run has recorded, in no order, and what it has under way.

    `begun` are the operation keys of effects that were begun and have no record yet, by place.
    """

    rows: Sequence[JournalRow] = ()
    timers: Sequence[TimerRow] = ()
    begun: Mapping[tuple[str, int], str] = {}


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be written.

    `cuts` are ascending offsets into the input at which a store may split it, so that inputs with
    equal beginnings share what they have in common, and `beginnings` are the digests of the input
    up to each of the newest of them. `nested` tells that it was performed below another operation,
    which stands for it once that one is recorded.
    """

    invocation: Invocation
    input_sha256: bytes
    outcome: Outcome
    attempt: int
    started_at: float
    finished_at: float
    nested: bool
    cuts: tuple[int, ...] = ()
    beginnings: tuple[bytes, ...] = ()


def timer_of(
    invocation: Invocation, input_sha256: bytes, wake_at: float | None, awaits: str | None = None
) -> TimerRow:
    """Return a delay or a wait as replay will find it."""
    return TimerRow(
        invocation.step_id,
        invocation.sequence,
        invocation.kind.value,
        invocation.handler_id,
        input_sha256,
        invocation.input_json,
        wake_at,
        awaits,
    )


def row_of(record: NewRecord, largest: int) -> JournalRow:
    """Return a new record as replay needs it, without a payload of more than `largest` bytes."""
    invocation = record.invocation
    status, payload = pack_outcome(record.outcome)
    return JournalRow(
        invocation.step_id,
        invocation.sequence,
        invocation.kind.value,
        invocation.handler_id,
        record.input_sha256,
        status,
        payload if len(payload) <= largest else None,
        record.attempt,
        record.finished_at,
        record.nested,
    )


def pack_outcome(outcome: Outcome) -> tuple[str, bytes]:
    """Return an outcome as the status and the payload that a store keeps."""
    if isinstance(outcome, Success):
        return status_of(outcome), outcome.output_json
    return status_of(outcome), msgspec.json.encode(outcome)


def status_of(outcome: Outcome) -> str:
    """Return the status of an outcome."""
    match outcome:
        case Success():
            return "success"
        case Failure():
            return "failure"
        case Suspended():
            return "suspended"
        case _:
            assert_never(outcome)


def unpack_outcome(status: str, payload: bytes) -> Outcome:
    """Return the outcome that a status and a payload stand for."""
    if status == "success":
        return Success(payload)
    if status == "failure":
        return _failures.decode(payload)
    return _suspensions.decode(payload)


class JournalStore(Protocol):
    """The port through which a run reads and writes its journal."""

    async def read_journal(self, run_id: str) -> Journal:
        """Return what the run has recorded; empty for a run that has recorded nothing."""
        ...

    async def read_payload(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the payload of one record, of any size."""
        ...

    async def read_input(self, run_id: str, step_id: str, sequence: int) -> bytes:
        """Return the exact input bytes of one record."""
        ...

    async def append_record(self, fence: Fence, record: NewRecord) -> None:
        """Write a record and end the delay or the wait of the same key, if one is under way.

        Durable when it returns: the record, fsynced.
        If it raises: `LeaseLost` when the fence no longer holds (nothing was written), or a
        `StorageError` (nothing was written).
        """
        ...

    async def begin_timer(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        awaits: str | None = None,
    ) -> None:
        """Write that a delay or a wait has begun: a later attempt waits only for what remains.

        Durable when it returns: the wake-up time and the name that is awaited, fsynced.
        If it raises: as `append_record`.
        """
        ...


class CheckpointStore(Protocol):
    """The port through which checkpoints are kept, one for each run and checkpoint id."""

    async def load_checkpoint(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint, or None when there is none.

        Raises `InvalidCheckpoint` for ids that are none, or a `StorageError`.
        """
        ...

    async def save_checkpoint(self, checkpoint: Checkpoint) -> Saved:
        """Write a checkpoint if it goes on from the one that is there; `compare` has the rules.

        Durable when it returns: the checkpoint, fsynced; one that was there before, too.
        If it raises: `InvalidCheckpoint`, `CheckpointTooLarge`, `StaleCheckpoint` or
        `CheckpointConflict`, and nothing was written; after a `StorageError`, saving it again
        tells.
        """
        ...

    async def remove_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint; nothing happens when there is none.

        Durable when it returns: that it is gone, fsynced.
        """
        ...
