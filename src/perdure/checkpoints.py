"""Checkpoints: how far something in a run has come, and what it needs to go on from there."""

from __future__ import annotations

from perdure.journal.checkpoint import Checkpoint, CheckpointKind, Saved
from perdure.journal.checkpoint_approval import load_paused, save_paused
from perdure.journal.checkpoint_file import FileStore
from perdure.journal.checkpoint_stream import CheckpointedStream
from perdure.journal.store import CheckpointStore

__all__ = [
    "Checkpoint",
    "CheckpointKind",
    "CheckpointStore",
    "CheckpointedStream",
    "FileStore",
    "Saved",
    "load_paused",
    "save_paused",
]
