from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.activity import Rest
from perdure.engine.history import OperationRow
from perdure.engine.store import ClaimedRun, NewRun, RunEnd, RunProblem, RunRow, RunState, Tombstone
from perdure.errors import InputDigestMismatch, StorageCorrupt, StorageError
from perdure.fence import Fence
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.store import JournalRow, NewRecord, TimerRow, pack_outcome, status_of
from perdure.storage.pieces import PLAIN, Split, carve, split
from perdure.storage.places import (
    delay_of,
    digest_of,
    given_of,
    input_of,
    output_of,
    payload_of,
    place_of,
    problem_of,
    run_named,
)
from perdure.storage.queue_places import place_row, queued_in
from perdure.storage.receipt_rows import ReceiptRows
from perdure.storage.vault import SEALED

MOST_WOKEN: Final = 1000
"""How many runs are woken at once."""

ENDS_WAIT: Final = frozenset({OperationKind.RETRY_DELAY, OperationKind.APPROVAL_RESUME})
"""The kinds of operations that may have a delay or a wait under way."""

_SIGN: Final = 1 << 63
_RANGE: Final = 1 << 64

_problems: Final = msgspec.json.Decoder(RunProblem)


class Rows(ReceiptRows):
    """Translates between what the ports speak of and the rows that a database keeps.

    What users gave, and what came of it, passes the vault in both directions.
    """

    # --- runs ---

    def new_run(self, run: NewRun, holder: str | None, whole: Split) -> dict[str, Any]:
        """Return the row of a new run, claimed by `holder` unless that is None.

        `whole` is its input in pieces and a rest.
        """
        packing, rest = self.new_rest(input_of(run_named(run.run_id)), whole)
        digest = hashlib.sha256(run.input_json).digest()
        given = given_of(run.run_id, run.function, run.version)
        claimed = holder is not None
        return {
            "run_id": run.run_id,
            "function": run.function,
            "version": run.version,
            "state": (RunState.RUNNING if claimed else RunState.PENDING).value,
            "holder": holder,
            "generation": int(claimed),
            "created_at": run.created_at,
            "started_at": run.created_at if claimed else None,
            "deadline_at": deadline_of(run),
            "parent": run.parent,
            **place_row(run.queued),
            "input_sha256": self.seal_digest(digest, given),
            "input_packing": packing,
            "input_piece": None,
            "input": rest,
        }

    def run_end(self, fence: Fence, end: RunEnd, now: float, whole: Split | None) -> dict[str, Any]:
        """Return how a run ended, as the parameters of the statement that writes it.

        `whole` is its output in pieces and a rest, or None when it has none.
        """
        run_id = fence.run_id
        packing, rest = (PLAIN, None) if whole is None else self.new_rest(output_of(run_id), whole)
        problem = None
        if end.problem is not None:
            problem = self.vault.seal(msgspec.json.encode(end.problem), problem_of(run_id))
        return {
            **fence_row(fence),
            "state": end.state.value,
            "output_packing": packing,
            "output_piece": None,
            "output": rest,
            "problem": problem,
            "problem_code": None if end.problem is None else end.problem.code,
            "doubted": end.doubted,
            "executed": end.executed,
            "replayed": end.replayed,
            "now": now,
        }

    def run(self, row: Sequence[Any], output: bytes | None) -> RunRow:
        """Return a run as it stands, with its output put together."""
        run_id, function, version, _, digest, _, _, _, problem, *_ = row
        given = self.run_digest(run_id, function, version, digest)
        return _run(row, given, self._problem(run_id, problem), output)

    def listed(
        self, row: Sequence[Any], output: bytes | None, unreadable: StorageError | None
    ) -> RunRow:
        """Return a run as far as it can be read; `unreadable` is why its output cannot."""
        run_id, function, version, _, digest, _, _, _, problem, *_ = row
        given, why = b"", None
        try:
            given = self.run_digest(run_id, function, version, digest)
            why = self._problem(run_id, problem)
        except StorageError as error:
            unreadable = unreadable or error
        return _run(row, given, why, output, unreadable)

    def _problem(self, run_id: str, stored: bytes | None) -> RunProblem | None:
        if stored is None:
            return None
        place = problem_of(run_id)
        try:
            return _problems.decode(self.vault.unseal(bytes(stored), place))
        except msgspec.DecodeError as error:
            raise StorageCorrupt(
                f"{place} is damaged in the database; restore it from a backup"
            ) from error

    def check_given(
        self, document: bytes, run_id: str, function: str, version: int, stored: bytes
    ) -> None:
        """Check that a run was given this document; raises `StorageCorrupt`."""
        if self.run_digest(run_id, function, version, stored) != hashlib.sha256(document).digest():
            raise StorageCorrupt(
                f"{input_of(run_named(run_id))} is damaged in the database; restore it from a"
                " backup"
            )

    def run_digest(self, run_id: str, function: str, version: int, stored: bytes) -> bytes:
        """Return the digest of what a run was given.

        Raises `StorageCorrupt` where its function or version was changed since it was sealed.
        """
        return self.unseal_digest(stored, given_of(run_id, function, version))

    # --- records ---

    def record(
        self, fence: Fence, record: NewRecord, whole: Split, answer: Split
    ) -> dict[str, Any]:
        """Return the row of a record, with its input and its payload in pieces and rests."""
        invocation = record.invocation
        status = status_of(record.outcome)
        place = place_of(fence.run_id, invocation.step_id, invocation.sequence)
        payload_packing, packed = self.new_rest(payload_of(place), answer)
        input_packing, tail = self.new_rest(input_of(place), whole)
        kind, attempt, at = invocation.kind.value, record.attempt, record.finished_at
        digest = record.input_sha256
        if not self.is_open:
            facts = (kind, invocation.handler_id, status, attempt, float(at), record.nested)
            digest = self.seal_digest(digest, digest_of(place, *facts))
        return {
            "run_id": fence.run_id,
            "holder": fence.holder,
            "generation": fence.generation,
            "step_id": invocation.step_id,
            "sequence": signed(invocation.sequence),
            "kind": kind,
            "handler_id": invocation.handler_id,
            "input_sha256": digest,
            "input_bytes": len(invocation.input_json),
            "status": status,
            "attempt": attempt,
            "nested": record.nested,
            "started_at": record.started_at,
            "finished_at": at,
            "input_piece": None,
            "input_packing": input_packing,
            "input_tail": tail,
            "payload_packing": payload_packing,
            "payload_piece": None,
            "payload_bytes": len(answer.document),
            "payload": packed,
        }

    def journal(self, run_id: str, row: Sequence[Any]) -> JournalRow:
        """Return one recorded operation of a run."""
        # Column by column: loading them is a good part of what a replay of many records costs.
        step_id, sequence, kind, handler_id, digest, status, attempt, at, nested, *rest = row
        packing, payload = rest
        if sequence < 0:
            sequence = unsigned(sequence)
        nested = nested != 0
        plain = self.is_open and packing == PLAIN
        if not plain or (payload is not None and payload.startswith(SEALED)):
            place = place_of(run_id, step_id, sequence)
            facts = (kind, handler_id, status, attempt, at, nested)
            digest = self.unseal_digest(digest, digest_of(place, *facts))
            if payload is not None:
                # One of this size has no pieces.
                payload = self.document(payload_of(place), (), packing, payload)
        return JournalRow(
            step_id, sequence, kind, handler_id, digest, status, payload, attempt, at, nested
        )

    def input_digest(self, run_id: str, row: Sequence[Any]) -> bytes:
        """Return the digest of what an operation was asked.

        `row` is that of `journal` without the payload. Raises `StorageCorrupt` where one of its
        columns was changed since it was sealed.
        """
        step_id, sequence, kind, handler_id, digest, status, attempt, at, nested = row
        place = place_of(run_id, step_id, unsigned(sequence))
        facts = (kind, handler_id, status, attempt, at, nested != 0)
        return self.unseal_digest(digest, digest_of(place, *facts))

    def operation(self, run_id: str, row: Sequence[Any]) -> OperationRow:
        """Return one recorded operation as people look at it."""
        *columns, nested = row
        step_id, sequence, kind, handler_id, digest, status, *sizes = columns
        attempt, at = columns[8], columns[11]
        head = (step_id, sequence, kind, handler_id, digest, status, attempt, at, nested)
        digest = self.input_digest(run_id, head)
        return OperationRow(step_id, unsigned(sequence), kind, handler_id, digest, status, *sizes)

    def new_timer(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        awaits: str | None = None,
    ) -> dict[str, Any]:
        """Return the row of a delay or a wait that begins."""
        place = place_of(fence.run_id, invocation.step_id, invocation.sequence)
        return {
            **fence_row(fence),
            "step_id": invocation.step_id,
            "sequence": signed(invocation.sequence),
            "kind": invocation.kind.value,
            "handler_id": invocation.handler_id,
            "input_sha256": self.seal_digest(input_sha256, digest_of(place, "delay")),
            "input": self.vault.seal(invocation.input_json, delay_of(place, wake_at, awaits)),
            "wake_at": wake_at,
            "awaits": awaits,
        }

    def timer(self, run_id: str, row: Sequence[Any]) -> TimerRow:
        """Return a delay or a wait that is under way."""
        step_id, sequence, kind, handler_id, digest, stored, wake_at, awaits = row
        sequence = unsigned(sequence)
        place = place_of(run_id, step_id, sequence)
        digest = self.unseal_digest(digest, digest_of(place, "delay"))
        document = self.vault.unseal(bytes(stored), delay_of(place, wake_at, awaits))
        return TimerRow(step_id, sequence, kind, handler_id, digest, document, wake_at, awaits)


def _run(
    row: Sequence[Any],
    digest: bytes,
    problem: RunProblem | None,
    output: bytes | None,
    unreadable: StorageError | None = None,
) -> RunRow:
    run_id, function, version, state, _, holder, generation, cancel, _, *times = row
    created_at, started_at, finished_at, erased_at, by, why, erasing, *waiting = times
    wake_at, deadline_at, parent, *place = waiting
    return RunRow(
        run_id,
        function,
        version,
        RunState(state),
        digest,
        holder,
        generation,
        bool(cancel),
        output,
        problem,
        created_at,
        started_at,
        finished_at,
        None if erased_at is None else Tombstone(erased_at, by, why, whole=not erasing),
        unreadable,
        wake_at,
        deadline_at,
        parent,
        queued_in(*place),
    )


def damaged(place: str, error: StorageCorrupt | None = None) -> InputDigestMismatch:
    """Return the error of an operation whose input is not what was written."""
    why = "; restore it from a backup" if error is None else f": {error}"
    return InputDigestMismatch(f"the input of {place} is damaged in the database{why}")


def fence_row(fence: Fence) -> dict[str, Any]:
    """Return a fence as the parameters that a statement names it by."""
    return {"run_id": fence.run_id, "holder": fence.holder, "generation": fence.generation}


def split_record(record: NewRecord) -> tuple[Split, Split]:
    """Return the input and the payload of a record in pieces and rests."""
    document = record.invocation.input_json
    whole = split(document, record.cuts, record.beginnings) if record.cuts else carve(document)
    _, payload = pack_outcome(record.outcome)
    return whole, carve(payload)


def started(run: NewRun, row: dict[str, Any]) -> RunRow:
    """Return a run as it stands right after its row was written."""
    return RunRow(
        run.run_id,
        run.function,
        run.version,
        RunState(row["state"]),
        hashlib.sha256(run.input_json).digest(),
        row["holder"],
        row["generation"],
        cancel_requested=False,
        output_json=None,
        problem=None,
        created_at=run.created_at,
        started_at=row["started_at"],
        finished_at=None,
        deadline_at=row["deadline_at"],
        parent=run.parent,
        queued=run.queued,
    )


def deadline_of(run: NewRun) -> float | None:
    """Return when a new run has to have ended, or None."""
    return None if run.deadline_seconds is None else run.created_at + run.deadline_seconds


def first_claim(fence: Fence, run: NewRun, row: dict[str, Any]) -> ClaimedRun:
    """Return the claim of a run that was started by its own worker."""
    return ClaimedRun(
        fence,
        run.function,
        run.version,
        run.input_json,
        run.created_at,
        recovered=False,
        deadline_at=row["deadline_at"],
        parent=run.parent,
    )


def parked_row(
    fence: Fence, rest: Rest, executed: int, replayed: int, now: float
) -> dict[str, Any]:
    """Return how a run that only waits is put away, but for the messages that it awaits."""
    state = RunState.SUSPENDED if rest.awaits else RunState.SLEEPING
    return {
        **fence_row(fence),
        "state": state.value,
        "until": rest.until,
        "executed": executed,
        "replayed": replayed,
        "now": now,
    }


def worker_row(name: str, lease_seconds: float, now: float) -> dict[str, Any]:
    """Return a new worker of this process, with a holder that no other worker has or will have."""
    return {
        "holder": f"{name}.{os.getpid()}.{secrets.token_hex(4)}",
        "name": name,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "lease_seconds": lease_seconds,
        "now": now,
    }


def served_names(served: Sequence[tuple[str, int]]) -> list[str]:
    """Return functions and their versions as the texts that statements compare them by."""
    return [f"{name}@{version}" for name, version in served]


def unsigned(sequence: int) -> int:
    """Return the unsigned 64-bit number that is stored as a signed one."""
    return sequence if sequence >= 0 else sequence + _RANGE


def signed(sequence: int) -> int:
    """Map an unsigned 64-bit number to the signed one that is stored."""
    return sequence if sequence < _SIGN else sequence - _RANGE
