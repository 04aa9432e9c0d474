from __future__ import annotations

import msgspec


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker process: who it is, and whether its lease stands."""

    holder: str
    name: str
    pid: int
    host: str
    alive: bool
    runs: int
    started_at: float


class WorkerNews(msgspec.Struct, frozen=True):
    """What a renewal learns: the runs that the worker still owns and those to be cancelled."""

    owned: frozenset[tuple[str, int]]
    cancelled: frozenset[str]
