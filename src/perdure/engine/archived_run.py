from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.approvals import Approval
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.store import BuriedReceipt, DecisionRow
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import RunRow
from perdure.errors import InvalidRecord
from perdure.ids import check_identifier
from perdure.inbox import Message
from perdure.journal.checkpoint import Checkpoint
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Record
from perdure.journal.store import TimerRow, pack_outcome, unpack_outcome

_SETTLED: Final = (ReceiptState.COMPLETED.value, ReceiptState.FAILED.value)


class ArchivedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One recorded operation whole: its exact input, and its outcome as `unpack_outcome` reads.

    In a file, `beginning` is an earlier record and how many bytes its input begins alike; they are
    left out of `input`, so that a conversation does not stand in it once for each request.
    """

    operation: OperationRow
    nested: bool
    input: bytes
    payload: bytes
    beginning: tuple[int, int] | None = None

    def invocation(self, run_id: str) -> Invocation:
        """Return what was asked."""
        row = self.operation
        kind = OperationKind(row.kind)
        return Invocation(run_id, row.step_id, row.sequence, kind, row.handler_id, self.input)

    def outcome(self) -> Outcome:
        """Return what came of it."""
        return unpack_outcome(self.operation.status, self.payload)


class RunArchive(msgspec.Struct, frozen=True, kw_only=True):
    """All that a store holds of one run; records, receipts and decisions as they were written.

    Approvals stand in it as `asked_for` returns them.
    """

    run: RunRow
    input: bytes
    attempts: Sequence[AttemptRow]
    records: Sequence[ArchivedRecord]
    timers: Sequence[TimerRow]
    receipts: Sequence[Receipt]
    decisions: Sequence[DecisionRow]
    buried: Sequence[BuriedReceipt] = ()
    checkpoints: Sequence[Checkpoint] = ()
    messages: Sequence[Message] = ()
    approvals: Sequence[Approval] = ()


def asked_for(approval: Approval) -> Approval:
    """Return what a run asked for without what its run and its wait say of it."""
    return msgspec.structs.replace(approval, open=False, expires_at=None)


def check_archive(archive: RunArchive) -> None:
    """Check that a store may have written what an archive holds.

    Raises `InvalidRecord`, another `JournalError`, or a `ValueError`.
    """
    _check_run(archive)
    _check_records(archive)
    _check_receipts(archive)
    _check_checkpoints(archive)
    _check_messages(archive)
    _check_approvals(archive)


def _check_run(archive: RunArchive) -> None:
    run = archive.run
    check_identifier(run.run_id, "run id")
    if run.state.executed or run.holder is not None or run.tombstone is not None:
        raise InvalidRecord("nobody exports a run that is being executed or was erased")
    _check_digest(archive.input, run.input_sha256, "its input")
    if run.queued is not None:
        check_identifier(run.queued.queue, "queue's name")


def _check_records(archive: RunArchive) -> None:
    seen: set[tuple[str, int]] = set()
    for record in archive.records:
        row = record.operation
        place = f"{row.step_id}/{row.sequence}"
        invocation, outcome = record.invocation(archive.run.run_id), record.outcome()
        Record(invocation, outcome).validate()
        _check_digest(record.input, row.input_sha256, f"the input of {place}")
        if (row.step_id, row.sequence) in seen or pack_outcome(outcome)[0] != row.status:
            raise InvalidRecord(f"the record of {place}")
        seen.add((row.step_id, row.sequence))
    for timer in archive.timers:
        _check_digest(timer.input_json, timer.input_sha256, f"the delay {timer.step_id}")
        invocation_of_delay(archive.run.run_id, timer).validate()


def invocation_of_delay(run_id: str, timer: TimerRow) -> Invocation:
    """Return what a delay was asked."""
    kind = OperationKind(timer.kind)
    return Invocation(
        run_id, timer.step_id, timer.sequence, kind, timer.handler_id, timer.input_json
    )


def _check_receipts(archive: RunArchive) -> None:
    keys: set[str] = set()
    for receipt in archive.receipts:
        key = receipt.operation_key
        named = (receipt.run_id, receipt.idempotency_key, receipt.target, receipt.ordinal)
        if key in keys or receipt.run_id != archive.run.run_id:
            raise InvalidRecord(f"the receipt {key} stands twice, or is of another run")
        if OperationIdentity(*named).operation_key != key:
            raise InvalidRecord(f"the receipt {key} is of an effect with another key")
        keys.add(key)
    receipts = frozenset(keys)
    for buried in archive.buried:
        if buried.operation_key in keys or buried.state not in _SETTLED:
            raise InvalidRecord(f"the tombstone of {buried.operation_key} is of no settled receipt")
        keys.add(buried.operation_key)
    for decision in archive.decisions:
        if decision.operation_key not in receipts:
            raise InvalidRecord(f"a decision is about {decision.operation_key}, which is not in it")


def _check_checkpoints(archive: RunArchive) -> None:
    keys: set[tuple[str, str]] = set()
    for checkpoint in archive.checkpoints:
        checkpoint.validate()
        if checkpoint.key in keys or checkpoint.run_id != archive.run.run_id:
            named = checkpoint.checkpoint_id
            raise InvalidRecord(f"the checkpoint {named} stands twice, or is of another run")
        keys.add(checkpoint.key)


def _check_messages(archive: RunArchive) -> None:
    ids: set[str] = set()
    for message in archive.messages:
        if message.message_id in ids or (message.taken_by is None) != (message.taken_at is None):
            raise InvalidRecord(f"the message {message.message_id} stands twice, or is half taken")
        ids.add(message.message_id)


def _check_approvals(archive: RunArchive) -> None:
    ids: set[str] = set()
    for approval in archive.approvals:
        whole = approval.run_id == archive.run.run_id and asked_for(approval) == approval
        answered = {approval.answer is None, approval.answered_at is None}
        if approval.item_id in ids or not whole or len(answered) > 1:
            raise InvalidRecord(
                f"the approval {approval.item_id} stands twice, or is of another run"
            )
        ids.add(approval.item_id)


def _check_digest(document: bytes, digest: bytes, what: str) -> None:
    if hashlib.sha256(document).digest() != digest:
        raise InvalidRecord(f"{what} does not have its digest")
