from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.effects.receipt import Receipt
from perdure.effects.store import DecisionRow
from perdure.engine.archived_run import ArchivedRecord, RunArchive, invocation_of_delay
from perdure.engine.history import AttemptRow
from perdure.engine.store import NewRun, RunEnd
from perdure.errors import RunConflict
from perdure.fence import Fence
from perdure.journal.store import NewRecord
from perdure.storage import approval_rows, message_rows
from perdure.storage.checkpoint_rows import checkpoint_row
from perdure.storage.pieces import Split, carve
from perdure.storage.receipt_rows import (
    VANISHED,
    answer_of,
    arguments_of,
    buried_of,
    doubt_of,
    reason_of,
)
from perdure.storage.rows import Rows

Row = dict[str, Any]

_NOBODY: Final = ""


def wholes_of(archive: RunArchive) -> list[Split]:
    """Return the documents of an archived run in pieces and rests, as `Arrival` takes them."""
    run = archive.run
    wholes = [carve(archive.input)]
    if run.output_json is not None:
        wholes.append(carve(run.output_json))
    for record in archive.records:
        wholes += (carve(record.input), carve(record.payload))
    return wholes


class Arrival:
    """The rows of an archived run, sealed as this store seals.

    `wholes` are its documents, in the order of `wholes_of`. `documents` are those that are in
    pieces: the row and the column that their last piece goes in.
    """

    def __init__(self, rows: Rows, archive: RunArchive, wholes: Sequence[Split]) -> None:
        self._rows = rows
        self._wholes = iter(wholes)
        self.run_id = archive.run.run_id
        self.documents: list[tuple[Row, str, Split]] = []
        self.run = self._run(archive)
        self.workers = [*_workers(archive)]
        self.attempts = [self._attempt(attempt) for attempt in archive.attempts]
        self.records = [self._record(record) for record in archive.records]
        self.timers = [
            rows.new_timer(
                self._fence(0),
                invocation_of_delay(self.run_id, timer),
                timer.input_sha256,
                timer.wake_at,
                timer.awaits,
            )
            for timer in archive.timers
        ]
        self.checkpoints = [checkpoint_row(rows.vault, each) for each in archive.checkpoints]
        self.messages = [
            message_rows.archived_row(rows.vault, self.run_id, each) for each in archive.messages
        ]
        self.approvals = [
            approval_rows.archived_row(rows.vault, self.run_id, each) for each in archive.approvals
        ]
        self.receipts = [_receipt(rows, receipt) for receipt in archive.receipts]
        self.buried = [
            {**msgspec.structs.asdict(each), **buried_of(self.run_id)} for each in archive.buried
        ]
        self.decisions = [_decision(rows, decision) for decision in archive.decisions]

    def _fence(self, generation: int) -> Fence:
        return Fence(self.run_id, _NOBODY, generation)

    def _run(self, archive: RunArchive) -> Row:
        run = archive.run
        new = NewRun(
            run.run_id,
            run.function,
            run.version,
            archive.input,
            run.created_at,
            queued=run.queued,
        )
        given = next(self._wholes)
        output = None if run.output_json is None else next(self._wholes)
        end = RunEnd(run.state, run.output_json, run.problem)
        ended = self._rows.run_end(self._fence(run.generation), end, 0.0, output)
        columns = ("output_packing", "output_piece", "output", "problem", "problem_code")
        row = {
            **self._rows.new_run(new, None, given),
            **{name: ended[name] for name in columns},
            "state": run.state.value,
            "generation": run.generation,
            "cancel_requested": run.cancel_requested,
            "started_at": run.started_at,
            "finished_at": run.finished_at,
            "wake_at": run.wake_at,
            "deadline_at": run.deadline_at,
            "parent": run.parent,
        }
        self._in_pieces(row, "input_piece", given)
        if output is not None:
            self._in_pieces(row, "output_piece", output)
        return row

    def _attempt(self, attempt: AttemptRow) -> Row:
        return {"run_id": self.run_id, **msgspec.structs.asdict(attempt)}

    def _record(self, archived: ArchivedRecord) -> Row:
        operation = archived.operation
        record = NewRecord(
            archived.invocation(self.run_id),
            operation.input_sha256,
            archived.outcome(),
            operation.attempt,
            operation.started_at,
            operation.finished_at,
            archived.nested,
        )
        given, answer = next(self._wholes), next(self._wholes)
        row = self._rows.record(self._fence(operation.generation), record, given, answer)
        self._in_pieces(row, "input_piece", given)
        self._in_pieces(row, "payload_piece", answer)
        return row

    def _in_pieces(self, row: Row, column: str, whole: Split) -> None:
        if whole.cuts:
            self.documents.append((row, column, whole))


def _workers(archive: RunArchive) -> list[Row]:
    """Return the workers that claimed the run, which are gone; one without a name is unknown."""
    known = {attempt.holder: attempt for attempt in reversed(archive.attempts) if attempt.worker}
    return [msgspec.structs.asdict(attempt) for _, attempt in sorted(known.items())]


def _receipt(rows: Rows, receipt: Receipt) -> Row:
    key, vault = receipt.operation_key, rows.vault
    row = msgspec.structs.asdict(receipt)
    row["support"], row["state"] = receipt.support.value, receipt.state.value
    row["arguments_sha256"] = rows.seal_digest(receipt.arguments_sha256, arguments_of(key))
    if receipt.payload is not None:
        row["payload"] = vault.seal(receipt.payload, answer_of(key))
    if receipt.problem is not None and receipt.problem != VANISHED:
        row["problem"] = vault.seal_text(receipt.problem, doubt_of(key))
    if receipt.decided_why is not None:
        row["decided_why"] = vault.seal_text(receipt.decided_why, reason_of(key))
    return row


def _decision(rows: Rows, decision: DecisionRow) -> Row:
    place = reason_of(decision.operation_key, decision.version)
    why = rows.vault.seal_text(decision.decided_why, place)
    return {**msgspec.structs.asdict(decision), "decided_why": why}


def taken(operation_key: str) -> RunConflict:
    """Return the error of a receipt that is here already as another one, or was erased here."""
    return RunConflict(
        f"the receipt {operation_key} of the exported run is here already, with something else in"
        " it, or was erased here; nothing was written"
    )
