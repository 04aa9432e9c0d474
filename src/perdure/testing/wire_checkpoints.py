from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from perdure.errors import JournalError
from perdure.journal.checkpoint import Checkpoint, CheckpointKind
from perdure.journal.checkpoint_file import FILE_LIMIT_BYTES, CheckpointFile
from perdure.journal.checkpoint_snapshot import encode_checkpoint, encode_snapshot, parse_snapshot
from perdure.ports import no_probe

_WHAT = "snapshot"


class _Operation(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked of a store; all but the ids are of what is saved."""

    op: Literal["load", "save", "remove"]
    run_id: str
    checkpoint_id: str
    kind: CheckpointKind = CheckpointKind.STREAM
    revision: int = 0
    cursor: int = 0
    state_json: str = ""

    def on(self, file: CheckpointFile) -> str | None:
        """Ask it, and return what came of it; None for nothing to load."""
        match self.op:
            case "load":
                loaded = file.load(self.run_id, self.checkpoint_id)
                return None if loaded is None else encode_checkpoint(loaded).decode()
            case "save":
                return file.save(
                    Checkpoint(
                        self.run_id,
                        self.checkpoint_id,
                        self.kind,
                        self.revision,
                        self.cursor,
                        self.state_json.encode(),
                    )
                )
            case "remove":
                file.remove(self.run_id, self.checkpoint_id)
                return "removed"


def canonical_snapshot(data: bytes) -> bytes:
    """Return a file of checkpoints as this release writes it."""
    found = parse_snapshot(data, what=_WHAT, limit_bytes=FILE_LIMIT_BYTES)
    return encode_snapshot(found.values(), what=_WHAT)


def checkpoint_results(data: bytes) -> bytes:
    """Return what a list of operations comes to on a new file, as a JSON list.

    After the result of each comes the file itself as text, or null where none was written. Each
    operation opens the file anew, as a process of its own would.
    """
    results: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoints.json"
        for operation in msgspec.json.decode(data, type=list[_Operation]):
            file = CheckpointFile(path, FILE_LIMIT_BYTES, 1.0, no_probe)
            try:
                results.append(operation.on(file))
            except JournalError as error:
                results.append(f"error.{type(error).__name__}")
        results.append(path.read_text() if path.exists() else None)
    return msgspec.json.encode(results)
