from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.canonical import encode
from perdure.child import CHILD_HANDLER
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.archive import ArchiveStore, export_run
from perdure.engine.archived_run import ArchivedRecord, RunArchive
from perdure.engine.history import OperationRow
from perdure.engine.store import RunState
from perdure.errors import ForkRepeats, RunConflict, UnknownOperation
from perdure.ids import new_run_id
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Success
from perdure.journal.store import pack_outcome
from perdure.recorder import FORK_STEP

_HANDLER: Final = "perdure.fork"

_GENERATION: Final = 1
"""The claim that a fork's first records are of: the journal of a first claim is not read."""


class Fork(msgspec.Struct, frozen=True):
    """A run to be made of another one.

    `at` is the stable key of an operation without its run, `step/sequence`; what was recorded
    before it is kept. `output_json` stands for what it came to, None to perform it again.
    `repeat_effects` says that what the other run did to the world from there on may be done again.
    """

    of: str
    at: str
    run_id: str | None = None
    output_json: bytes | None = None
    repeat_effects: bool = False


async def fork_run(store: ArchiveStore, fork: Fork, now: float) -> str:
    """Write a run that another one was up to an operation, and return its id.

    Durable when it returns: the run, fsynced.
    If it raises: `UnknownRun`, `RunErased`, `RunConflict` while the other one is executed or when
    there is a run of the new id, `UnknownOperation`, `ForkRepeats` with the effects that need a
    decision, or a `StorageError`; nothing was written.
    """
    source = await export_run(store, fork.of)
    kept, at = _before(source, fork.at)
    if not fork.repeat_effects:
        _check_effects(source, fork, kept)
    run_id = fork.run_id or new_run_id(now)
    first = _origin(source, fork, now)
    records = [first, *kept]
    if fork.output_json is not None:
        records.append(_edited(at, fork.output_json, now))
    archive = RunArchive(
        run=msgspec.structs.replace(
            source.run,
            run_id=run_id,
            state=RunState.PENDING,
            generation=_GENERATION,
            holder=None,
            cancel_requested=False,
            output_json=None,
            problem=None,
            created_at=now,
            started_at=None,
            finished_at=None,
            wake_at=None,
            deadline_at=None,
            parent=None,
        ),
        input=source.input,
        attempts=[],
        records=[_claimed_before(record) for record in records],
        timers=[],
        receipts=[],
        decisions=[],
    )
    if not await store.import_run(archive):
        raise RunConflict(f"there is a run {run_id} already: give the fork another id")
    return run_id


def _before(source: RunArchive, at: str) -> tuple[list[ArchivedRecord], ArchivedRecord]:
    """Return what was recorded before an operation, and its record."""
    for number, record in enumerate(source.records):
        if _place(record.operation) == at and record.operation.step_id != FORK_STEP:
            below = f"{at.replace('/', '.')}."
            kept = [
                earlier
                for earlier in source.records[:number]
                if not earlier.operation.step_id.startswith(below)
                and earlier.operation.step_id != FORK_STEP
            ]
            return kept, record
    known = ", ".join(_place(record.operation) for record in source.records if not record.nested)
    raise UnknownOperation(
        f"run {source.run.run_id} recorded no operation {at!r}; it recorded: {known or 'none'}"
    )


def _check_effects(source: RunArchive, fork: Fork, kept: Sequence[ArchivedRecord]) -> None:
    """Raise `ForkRepeats` where the new run may do again what the other one did to the world."""
    answered = {_place(record.operation) for record in kept}
    if fork.output_json is not None:
        # What was performed below it is not performed again either.
        below = f"{fork.at.replace('/', '.')}."
        answered.add(fork.at)
        answered |= {
            place
            for receipt in source.receipts
            if (place := _performed_at(receipt)).startswith(below)
        }
    repeated = [
        receipt.operation_key
        for receipt in source.receipts
        if receipt.state is not ReceiptState.FAILED and _performed_at(receipt) not in answered
    ]
    children = [
        msgspec.json.decode(record.payload)["run_id"]
        for record in source.records
        if record.operation.handler_id == CHILD_HANDLER and record.operation.status == "success"
        if _place(record.operation) not in answered
    ]
    if repeated or children:
        raise ForkRepeats(source.run.run_id, fork.at, repeated, children)


def _performed_at(receipt: Receipt) -> str:
    return f"{receipt.idempotency_key}/{receipt.ordinal}"


def _origin(source: RunArchive, fork: Fork, now: float) -> ArchivedRecord:
    """Return the record that says which run this one was: ids that it drew stay what they were."""
    before = origin_in(source) or source.run.run_id
    documents = encode({"of": fork.of, "at": fork.at}), encode({"origin": before})
    return _record((FORK_STEP, 0), OperationKind.TOOL_CALL, _HANDLER, documents, now)


def origin_in(source: RunArchive) -> str | None:
    """Return the run that a fork draws its ids from, or None for a run that is no fork."""
    for record in source.records:
        if record.operation.step_id == FORK_STEP:
            return msgspec.json.decode(record.payload)["origin"]
    return None


def _edited(at: ArchivedRecord, output_json: bytes, now: float) -> ArchivedRecord:
    row = at.operation
    place, documents = (row.step_id, row.sequence), (at.input, output_json)
    kind = OperationKind(row.kind)
    return _record(place, kind, row.handler_id, documents, now, nested=at.nested)


def _record(
    place: tuple[str, int],
    kind: OperationKind,
    handler_id: str,
    documents: tuple[bytes, bytes],
    now: float,
    *,
    nested: bool = True,
) -> ArchivedRecord:
    input_json, output_json = documents
    status, payload = pack_outcome(Success(output_json))
    operation = OperationRow(
        *place,
        kind=kind.value,
        handler_id=handler_id,
        input_sha256=hashlib.sha256(input_json).digest(),
        status=status,
        input_bytes=len(input_json),
        payload_bytes=len(payload),
        attempt=1,
        generation=_GENERATION,
        started_at=now,
        finished_at=now,
    )
    return ArchivedRecord(operation, nested, input_json, payload)


def _claimed_before(record: ArchivedRecord) -> ArchivedRecord:
    """Return a record as that of a claim before the first one of the new run."""
    operation = msgspec.structs.replace(record.operation, generation=_GENERATION)
    return msgspec.structs.replace(record, operation=operation)


def _place(row: OperationRow) -> str:
    return f"{row.step_id}/{row.sequence}"
