from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.errors import RunErased, UnknownRun
from perdure.journal.checkpoint import Checkpoint, CheckpointKind
from perdure.storage.vault import Vault


def checkpoint_row(vault: Vault, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the row of a checkpoint; its state passes the vault."""
    facts = (checkpoint.kind.value, checkpoint.revision, checkpoint.cursor)
    return {
        "run_id": checkpoint.run_id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind.value,
        "revision": checkpoint.revision,
        "cursor": checkpoint.cursor,
        "state": vault.seal(checkpoint.state_json, state_of(*checkpoint.key, *facts)),
    }


def checkpoint_of(vault: Vault, run_id: str, row: Sequence[Any]) -> Checkpoint:
    """Return a checkpoint from its row.

    Raises `StorageCorrupt` where any of its columns was changed since it was sealed.
    """
    checkpoint_id, kind, revision, cursor, stored = row
    state = vault.unseal(bytes(stored), state_of(run_id, checkpoint_id, kind, revision, cursor))
    return Checkpoint(run_id, checkpoint_id, CheckpointKind(kind), revision, cursor, state)


def run_number_of(run_id: str, found: Sequence[Any] | None) -> int:
    """Return the number of the run that a checkpoint is to be saved of.

    `found` is the run's number, who erased it and why. Raises `UnknownRun` or `RunErased`.
    """
    if found is None:
        raise UnknownRun(f"there is no run {run_id!r} in this store, whose checkpoints are of runs")
    run_number, by, why = found
    if by is not None:
        raise RunErased(run_id, by=by, why=why)
    return run_number


def state_of(run_id: str, checkpoint_id: str, kind: str, revision: int, cursor: int) -> str:
    """Return the place of the state of a checkpoint, with what else its row says."""
    return f"the state of checkpoint {run_id}/{checkpoint_id}|{kind}|{revision}|{cursor}"
