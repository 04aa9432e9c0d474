from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.store import Settlement
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import NewRun, RunEnd, RunProblem, RunRow, RunState, Tombstone
from perdure.fence import Fence
from perdure.journal.invocation import Invocation
from perdure.journal.store import JournalRow, NewRecord, TimerRow, pack_outcome
from perdure.storage.pieces import (
    PLAIN,
    Split,
    carve,
    pack,
    pack_rest,
    split,
    unpack,
    unpack_rest,
)
from perdure.storage.receipt_rows import move_of
from perdure.storage.vault import SEALED, OpenVault, Vault
from perdure.wording import printable

VANISHED: Final = "its worker is gone"
"""What statements write as the problem of an attempt, by themselves and so in the open."""

_SIGN: Final = 1 << 63
_RANGE: Final = 1 << 64

_problems: Final = msgspec.json.Decoder(RunProblem)


class Rows:
    """Translates between what the ports speak of and the rows that a database keeps.

    What users gave, and what came of it, passes the vault in both directions.
    """

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self._open = isinstance(vault, OpenVault)

    # --- runs ---

    def new_run(self, run: NewRun, holder: str | None, whole: Split) -> dict[str, Any]:
        """Return the row of a new run, claimed by `holder` unless that is None.

        `whole` is its input in pieces and a rest.
        """
        packing, rest = pack_rest(whole)
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
            "input_sha256": hashlib.sha256(run.input_json).digest(),
            "input_packing": packing,
            "input_piece": None,
            "input": self.vault.seal(rest, input_of(run_named(run.run_id))),
        }

    def run_end(self, fence: Fence, end: RunEnd, now: float, whole: Split | None) -> dict[str, Any]:
        """Return how a run ended, as the parameters of the statement that writes it.

        `whole` is its output in pieces and a rest, or None when it has none.
        """
        packing, rest = (PLAIN, None) if whole is None else pack_rest(whole)
        problem = None if end.problem is None else msgspec.json.encode(end.problem)
        return {
            **fence_row(fence),
            "state": end.state.value,
            "output_packing": packing,
            "output_piece": None,
            "output": self._seal(rest, output_of(fence.run_id)),
            "problem": self._seal(problem, f"the problem of {run_named(fence.run_id)}"),
            "problem_code": None if end.problem is None else end.problem.code,
            "doubted": end.doubted,
            "executed": end.executed,
            "replayed": end.replayed,
            "now": now,
        }

    def run(self, row: Sequence[Any], output: bytes | None) -> RunRow:
        """Return a run as it stands, with its output put together."""
        *head, created_at, started_at, finished_at, erased_at, by, why, erasing = row
        run_id, function, version, state, digest, holder, generation, cancel, problem = head
        problem = self._unseal(problem, f"the problem of {run_named(run_id)}")
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
            None if problem is None else _problems.decode(problem),
            created_at,
            started_at,
            finished_at,
            None if erased_at is None else Tombstone(erased_at, by, why, whole=not erasing),
        )

    # --- records ---

    def record(
        self, fence: Fence, record: NewRecord, whole: Split, answer: Split
    ) -> dict[str, Any]:
        """Return the row of a record, with its input and its payload in pieces and rests."""
        invocation = record.invocation
        status, payload = pack_outcome(record.outcome)
        place = place_of(fence.run_id, invocation.step_id, invocation.sequence)
        payload_packing, packed = pack_rest(answer)
        input_packing, tail = pack_rest(whole)
        return {
            "run_id": fence.run_id,
            "holder": fence.holder,
            "generation": fence.generation,
            "step_id": invocation.step_id,
            "sequence": signed(invocation.sequence),
            "kind": invocation.kind.value,
            "handler_id": invocation.handler_id,
            "input_sha256": record.input_sha256,
            "input_bytes": len(invocation.input_json),
            "status": status,
            "attempt": record.attempt,
            "nested": record.nested,
            "started_at": record.started_at,
            "finished_at": record.finished_at,
            "input_piece": None,
            "input_packing": input_packing,
            "input_tail": self.vault.seal(tail, input_of(place)),
            "payload_packing": payload_packing,
            "payload_piece": None,
            "payload_bytes": len(payload),
            "payload": self.vault.seal(packed, payload_of(place)),
        }

    def journal(self, run_id: str, row: Sequence[Any]) -> JournalRow:
        """Return one recorded operation of a run."""
        # Column by column: loading them is a good part of what a replay of many records costs.
        step_id, sequence, kind, handler_id, digest, status, attempt, at, nested, *rest = row
        packing, payload = rest
        if sequence < 0:
            sequence = unsigned(sequence)
        if payload is not None and not (
            packing == PLAIN and self._open and not payload.startswith(SEALED)
        ):
            place = payload_of(place_of(run_id, step_id, sequence))
            payload = unpack(packing, self.vault.unseal(bytes(payload), place))
        nested = nested != 0
        return JournalRow(
            step_id, sequence, kind, handler_id, digest, status, payload, attempt, at, nested
        )

    def rest(self, place: str, packing: int, stored: bytes) -> tuple[bytes, bytes]:
        """Return what comes before the pieces of a document, and what follows them."""
        return unpack_rest(packing, self.vault.unseal(bytes(stored), place))

    def new_piece(self, digest: bytes, part: bytes) -> tuple[int, bytes]:
        """Return how a piece of inputs is packed, and its bytes."""
        packing, data = pack(part)
        return packing, self.vault.seal(data, f"the piece {digest.hex()}")

    def piece(self, digest: bytes, packing: int, stored: bytes) -> bytes:
        """Return a piece of inputs."""
        return unpack(packing, self.vault.unseal(bytes(stored), f"the piece {digest.hex()}"))

    def new_timer(
        self, fence: Fence, invocation: Invocation, input_sha256: bytes, wake_at: float
    ) -> dict[str, Any]:
        """Return the row of a delay that begins."""
        place = place_of(fence.run_id, invocation.step_id, invocation.sequence)
        return {
            **fence_row(fence),
            "step_id": invocation.step_id,
            "sequence": signed(invocation.sequence),
            "kind": invocation.kind.value,
            "handler_id": invocation.handler_id,
            "input_sha256": input_sha256,
            "input": self.vault.seal(invocation.input_json, f"the delay of {place}"),
            "wake_at": wake_at,
        }

    def timer(self, run_id: str, row: Sequence[Any]) -> TimerRow:
        """Return a delay that is under way."""
        step_id, sequence, kind, handler_id, digest, stored, wake_at = row
        sequence = unsigned(sequence)
        place = f"the delay of {place_of(run_id, step_id, sequence)}"
        document = self.vault.unseal(bytes(stored), place)
        return TimerRow(step_id, sequence, kind, handler_id, bytes(digest), document, wake_at)

    # --- receipts ---

    def settlement(self, settlement: Settlement, now: float) -> dict[str, Any]:
        """Return a move of a receipt as the parameters of the statement that makes it."""
        state, possible = move_of(settlement.move, decided=settlement.version is not None)
        key = settlement.operation_key
        problem = settlement.problem
        if problem is not None:
            problem = self.vault.seal_text(printable(problem), f"the problem of effect {key}")
        return {
            **msgspec.structs.asdict(settlement),
            "payload": self._seal(settlement.payload, f"the answer of effect {key}"),
            "problem": problem,
            "state": state,
            "sources": possible,
            "now": now,
        }

    def receipt(self, row: Sequence[Any]) -> Receipt:
        """Return a receipt as it stands."""
        fields = dict(zip(Receipt.__struct_fields__, row, strict=True))
        key = fields["operation_key"]
        fields["support"] = SideEffectSupport(fields["support"])
        fields["state"] = ReceiptState(fields["state"])
        for name in ("exhausted", "earlier_unknown", "residual_duplicate_risk"):
            fields[name] = bool(fields[name])
        fields["payload"] = self._unseal(fields["payload"], f"the answer of effect {key}")
        if (problem := fields["problem"]) not in {None, VANISHED}:
            fields["problem"] = self.vault.unseal_text(problem, f"the problem of effect {key}")
        return Receipt(**fields)

    def _seal(self, data: bytes | None, place: str) -> bytes | None:
        return None if data is None else self.vault.seal(data, place)

    def _unseal(self, stored: bytes | None, place: str) -> bytes | None:
        return None if stored is None else self.vault.unseal(bytes(stored), place)


def fence_row(fence: Fence) -> dict[str, Any]:
    """Return a fence as the parameters that a statement names it by."""
    return {"run_id": fence.run_id, "holder": fence.holder, "generation": fence.generation}


def place_of(run_id: str, step_id: str, sequence: int) -> str:
    """Return the name of an operation in messages, and what seals its values to their row."""
    return f"operation {run_id}/{step_id}/{sequence}"


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
        row["input_sha256"],
        row["holder"],
        row["generation"],
        cancel_requested=False,
        output_json=None,
        problem=None,
        created_at=run.created_at,
        started_at=row["started_at"],
        finished_at=None,
    )


def served_names(served: Sequence[tuple[str, int]]) -> list[str]:
    """Return functions and their versions as the texts that statements compare them by."""
    return [f"{name}@{version}" for name, version in served]


def unsigned(sequence: int) -> int:
    """Return the unsigned 64-bit number that is stored as a signed one."""
    return sequence if sequence >= 0 else sequence + _RANGE


def signed(sequence: int) -> int:
    """Map an unsigned 64-bit number to the signed one that is stored."""
    return sequence if sequence < _SIGN else sequence - _RANGE


def input_of(what: str) -> str:
    """Return the place of what a run or an operation was given."""
    return f"the input of {what}"


def output_of(run_id: str) -> str:
    """Return the place of what a run came to."""
    return f"the output of {run_named(run_id)}"


def payload_of(operation: str) -> str:
    """Return the place of what an operation came to."""
    return f"the payload of {operation}"


def run_named(run_id: str) -> str:
    """Return the name of a run in messages, and what seals its values to their row."""
    return f"run {run_id}"
