from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from perdure.approvals import Approval
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.archived_run import ArchivedRecord, RunArchive, asked_for, check_archive
from perdure.engine.store import RunProblem, RunRow, RunState, RunStore
from perdure.errors import (
    InvalidRecord,
    JournalError,
    RunConflict,
    RunErased,
    UnknownRun,
    UnsupportedRecordVersion,
)
from perdure.inbox import Message
from perdure.journal.checkpoint import Checkpoint

VERSION: Final = 3
"""The version of the archive format that this release writes; it reads those up to it."""

IMPORTED: Final = "Imported"
"""The problem of an imported run that waited where it came from, but for a person."""

_MAY_GO_ON: Final = (
    "it waited in the store that it was exported from, not for a person, and may have gone on there"
    " since: to move a run, cancel it there first, export it after that, and import it to go on"
)
_GOES_ON_HERE: Final = "it was cancelled where it came from: resume it to let it go on here"
_WORTH_SHARING_BYTES: Final = 64
_MANY: Final = 1_000_000
_WAITS: Final[tuple[RunState, ...]] = (RunState.PENDING, RunState.SLEEPING, RunState.SUSPENDED)
_DAMAGED: Final = "the exported run is damaged"


class _Document(msgspec.Struct, frozen=True):
    """An archive in a file: `sha256` is of the exact bytes of `content`, in hex."""

    perdure_run: int
    sha256: str
    content: msgspec.Raw


class ArchiveStore(RunStore, Protocol):
    """The port through which a store takes in an archived run."""

    async def import_run(self, archive: RunArchive) -> bool:
        """Write all that an archive holds, in one transaction, unless there is a run of its id.

        Returns whether there was none.
        Durable when it returns: the run, fsynced.
        If it raises: `RunConflict` for a receipt that is there already as another one, or was
        erased, or a `StorageError`, and nothing was written.
        """
        ...


_encode: Final = msgspec.json.Encoder().encode
_documents: Final = msgspec.json.Decoder(_Document)
_archives: Final = msgspec.json.Decoder(RunArchive)


async def export_run(store: RunStore, run_id: str) -> RunArchive:
    """Return all that a store holds of a run; nothing in it is encrypted.

    Raises `UnknownRun`, `RunErased`, or `RunConflict` while a worker executes it.
    """
    run = await store.read_run(run_id)
    if run is None:
        raise UnknownRun(f"there is no run {run_id!r} in this store")
    if run.tombstone is not None:
        raise RunErased(run_id, by=run.tombstone.by, why=run.tombstone.why)
    if run.state.executed:
        raise RunConflict(
            f"run {run_id} is being executed: try again when it has stopped; a worker that has died"
            " is noticed by another one, or by perdure doctor"
        )
    try:
        archive = await _read(store, run)
    except (JournalError, UnknownRun) as error:
        if await store.read_run(run_id) == run:
            raise
        raise _changed(run_id) from error
    # All of this is read in many steps, and is one state only if nothing was written meanwhile.
    now = (await store.read_run(run_id), await _receipts_of(store, run_id))
    if now != (run, archive.receipts) or await _beside(store, run_id) != (
        archive.checkpoints,
        archive.messages,
        archive.approvals,
    ):
        raise _changed(run_id)
    return archive


def _changed(run_id: str) -> RunConflict:
    return RunConflict(f"run {run_id} was changed while it was read: export it again")


async def _read(store: RunStore, run: RunRow) -> RunArchive:
    run_id = run.run_id
    journal = await store.read_journal(run_id)
    receipts = await _receipts_of(store, run_id)
    checkpoints, messages, approvals = await _beside(store, run_id)
    return RunArchive(
        run=run,
        input=await store.read_run_input(run_id),
        attempts=[*await store.list_attempts(run_id)],
        records=await _records_of(
            store, run_id, {(row.step_id, row.sequence) for row in journal.rows if row.nested}
        ),
        timers=sorted(journal.timers, key=lambda timer: (timer.step_id, timer.sequence)),
        receipts=receipts,
        decisions=[
            decision
            for receipt in receipts
            for decision in await store.list_decisions(receipt.operation_key)
        ],
        buried=[*await store.list_buried(run_id)],
        checkpoints=checkpoints,
        messages=messages,
        approvals=approvals,
    )


async def _beside(
    store: RunStore, run_id: str
) -> tuple[list[Checkpoint], list[Message], list[Approval]]:
    """Return what may be written of a run while nobody executes it."""
    approvals = await store.list_approvals(run_id, open_only=False, limit=_MANY)
    return (
        [*await store.list_checkpoints(run_id)],
        [*await store.list_messages(run_id)],
        [asked_for(approval) for approval in approvals],
    )


async def take_in(store: ArchiveStore, archive: RunArchive, *, go_on: bool = False) -> bool:
    """Write an archived run, as `arriving` has it; False where that very run is there already.

    Durable when it returns: the run, fsynced.
    If it raises: `RunConflict` for a run of its id that holds something else, or for a receipt that
    is there as another one or was erased, `RunErased`, `InvalidRecord`, or a `StorageError`;
    nothing was written.
    """
    coming = arriving(archive, go_on=go_on)
    try:
        if await store.import_run(coming):
            return True
    except (OverflowError, struct.error) as error:
        raise InvalidRecord(f"{_DAMAGED}: it holds a number that no store would have") from error
    run_id = archive.run.run_id
    row = await store.read_run(run_id)
    if row is not None and not row.state.executed:
        there = _content(await export_run(store, run_id))
        if there in {_content(archive), _content(coming)}:
            return False
    raise RunConflict(
        f"there is a run {run_id} here that holds something else than the exported one; nothing was"
        " written. Look at it with `perdure show`"
    )


def arriving(archive: RunArchive, *, go_on: bool = False) -> RunArchive:
    """Return an archived run as it is imported.

    One that waits for a worker, a time or a message waits for a person instead, because it may go
    on where it came from, or has since; with `go_on`, so does one that was cancelled there, and can
    be resumed here. What was in flight there is ambiguous.
    """
    run = archive.run
    said: dict[RunState, str] = dict.fromkeys(_WAITS, _MAY_GO_ON)
    if go_on:
        said[RunState.CANCELLED] = _GOES_ON_HERE
    if run.state in said:
        problem = RunProblem(IMPORTED, IMPORTED, said[run.state])
        run = msgspec.structs.replace(
            run, state=RunState.NEEDS_ATTENTION, problem=problem, wake_at=None
        )
    return msgspec.structs.replace(archive, run=run, receipts=[*map(_doubted, archive.receipts)])


def encode_archive(archive: RunArchive) -> bytes:
    """Return an archive as one JSON document in one line; bytes in it are in base64."""
    content = _encode(msgspec.structs.replace(archive, records=[*_shortened(archive.records)]))
    digest = hashlib.sha256(content).hexdigest()
    return _encode(_Document(VERSION, digest, msgspec.Raw(content))) + b"\n"


def decode_archive(data: bytes) -> RunArchive:
    """Return the archive that a document holds.

    Raises `UnsupportedRecordVersion` for one of a newer release, and `InvalidRecord` for one that
    is malformed, was changed, or holds what no store would have written.
    """
    try:
        document = _documents.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRecord(f"this is no exported run: {error}") from error
    if not 1 <= document.perdure_run <= VERSION:
        raise UnsupportedRecordVersion(
            f"the exported run has version {document.perdure_run} and this release reads up to"
            f" version {VERSION}: upgrade perdure where it is imported"
        )
    if hashlib.sha256(document.content).hexdigest() != document.sha256:
        raise InvalidRecord(
            f"{_DAMAGED}: its content does not have the digest that it names; export it again"
        )
    try:
        archive = _archives.decode(document.content)
        archive = msgspec.structs.replace(archive, records=_whole(archive.records))
        check_archive(archive)
    except (msgspec.MsgspecError, ValueError, RecursionError, JournalError) as error:
        raise InvalidRecord(f"{_DAMAGED}: {error}") from error
    return archive


def _shortened(records: Sequence[ArchivedRecord]) -> Iterator[ArchivedRecord]:
    """Yield records without the beginnings that an earlier one of the same handler has."""
    newest: dict[str, int] = {}
    for number, record in enumerate(records):
        like = newest.get(record.operation.handler_id)
        newest[record.operation.handler_id] = number
        alike = 0 if like is None else _alike(records[like].input, record.input)
        if like is None or alike < _WORTH_SHARING_BYTES:
            yield record
        else:
            rest = record.input[alike:]
            yield msgspec.structs.replace(record, input=rest, beginning=(like, alike))


def _whole(records: Sequence[ArchivedRecord]) -> list[ArchivedRecord]:
    whole: list[ArchivedRecord] = []
    for record in records:
        if record.beginning is not None:
            like, alike = record.beginning
            if not (0 <= like < len(whole) and 0 < alike <= len(whole[like].input)):
                raise InvalidRecord(f"record {len(whole)} begins like none before it")
            document = whole[like].input[:alike] + record.input
            record = msgspec.structs.replace(record, input=document, beginning=None)  # noqa: PLW2901
        whole.append(record)
    return whole


def _alike(one: bytes, other: bytes) -> int:
    """Return how many bytes two documents have in common at their beginnings."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


async def _records_of(
    store: RunStore, run_id: str, nested: set[tuple[str, int]]
) -> list[ArchivedRecord]:
    records: list[ArchivedRecord] = []
    for operation in await store.list_operations(run_id):
        key = (operation.step_id, operation.sequence)
        document = await store.read_input(run_id, *key)
        payload = await store.read_payload(run_id, *key)
        records.append(ArchivedRecord(operation, key in nested, document, payload))
    return records


async def _receipts_of(store: RunStore, run_id: str) -> list[Receipt]:
    """Return the receipts of a run, the oldest first."""
    newest = await store.list_receipts(ambiguous_only=False, limit=_MANY, run_id=run_id)
    return [*reversed(newest)]


def _content(archive: RunArchive) -> bytes:
    """Return what makes an archive the same: not the names of workers, which are forgotten."""
    attempts = [msgspec.structs.replace(attempt, worker="", pid=0) for attempt in archive.attempts]
    return _encode(msgspec.structs.replace(archive, attempts=attempts))


def _doubted(receipt: Receipt) -> Receipt:
    if receipt.state is not ReceiptState.IN_FLIGHT:
        return receipt
    return msgspec.structs.replace(
        receipt,
        state=ReceiptState.AMBIGUOUS,
        version=receipt.version + 1,
        problem="it was in flight when its run was exported",
        settled_at=receipt.claimed_at,
        lookup_at=receipt.claimed_at,
    )
