from __future__ import annotations

import msgspec


class AttemptRow(msgspec.Struct, frozen=True):
    """One claim of a run: by whom, when, and how it ended.

    `ended_at` and `ending` are None while it goes on. `executed` and `replayed` count operations
    and are written when the execution ends, so they are 0 for one that was lost.
    """

    generation: int
    holder: str
    worker: str
    pid: int
    claimed_at: float
    ended_at: float | None
    ending: str | None
    executed: int
    replayed: int


class OperationRow(msgspec.Struct, frozen=True):
    """One recorded operation as people look at it; sizes are bytes, times wall seconds, UTC."""

    step_id: str
    sequence: int
    kind: str
    handler_id: str
    input_sha256: bytes
    status: str
    input_bytes: int
    payload_bytes: int
    attempt: int
    generation: int
    started_at: float
    finished_at: float
