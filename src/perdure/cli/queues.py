from __future__ import annotations

from typing import Any, Final

from perdure.cli.pausable import Pausable
from perdure.cli.sheet import Column
from perdure.engine.queues import QueueRow

_COLUMNS: Final = (
    Column("queue"),
    Column("pending", number=True),
    Column("running", number=True),
    Column("at once", number=True),
    Column("per key", number=True, dispensable=1),
    Column("rate", dispensable=1),
    Column("paused", below=True),
)


def _describe(row: QueueRow) -> dict[str, Any]:
    limits = row.limits
    return {
        "name": row.name,
        "pending": row.pending,
        "running": row.running,
        "concurrency": limits.concurrency,
        "key_concurrency": limits.key_concurrency,
        "rate_runs": limits.rate_runs,
        "rate_seconds": limits.rate_seconds,
        "paused": row.paused,
    }


def _cells(row: QueueRow) -> tuple[object, ...]:
    limits = row.limits
    rate = "" if limits.rate_runs is None else f"{limits.rate_runs} in {limits.rate_seconds:g} s"
    bounds = ("" if each is None else each for each in (limits.concurrency, limits.key_concurrency))
    return (row.name, row.pending, row.running, *bounds, rate, "paused" if row.paused else "")


QUEUES: Final = Pausable(
    noun="queue",
    lists="list queues, what waits in them and their limits",
    pauses="keep the runs of a queue from beginning and from going on",
    resumes="let the runs of a queue begin and go on",
    columns=_COLUMNS,
    rows=lambda app: app.queues(),
    pause=lambda app, name: app.pause_queue(name),
    resume=lambda app, name: app.resume_queue(name),
    describe=_describe,
    cells=_cells,
)
"""The command that lists queues, what waits in them and their limits."""
