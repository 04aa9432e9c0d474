from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.engine.queues import QueueLimits, QueueRow
from perdure.queued import Queued


class Turns:
    """Who comes first when runs wait in queues and in none: in turn, so that both go on."""

    def __init__(self) -> None:
        self._queued_last = False

    def order(self, *, plain: bool, queued: bool) -> Sequence[str]:
        """Return the names of the statements that claim what there is, in their order."""
        if plain and queued:
            self._queued_last = not self._queued_last
            first, last = "claim_queued", "claim_runs"
            return (last, first) if self._queued_last else (first, last)
        return ["claim_queued"] * queued + ["claim_runs"] * plain


class QueuePlaces(msgspec.Struct):
    """How many runs a queue has a place for: `free` ones, of which `fresh` may begin."""

    name: str
    key_concurrency: int | None
    free: int
    fresh: int


class QueuedRun(msgspec.Struct, frozen=True):
    """A waiting run that its queue may let through; `fresh` if it would begin.

    `held` is how many runs with its key are executed.
    """

    run_number: int
    queue: str
    key: str | None
    fresh: bool
    priority: int
    held: int


def place_row(queued: Queued | None) -> dict[str, Any]:
    """Return where a run waits as the columns of its row."""
    if queued is None:
        return {"queue": None, "queue_key": None, "priority": 0}
    return {"queue": queued.queue, "queue_key": queued.key, "priority": queued.priority}


def queued_in(queue: str | None, key: str | None, priority: int) -> Queued | None:
    """Return where the run of a row waits, None for one of no queue."""
    return None if queue is None else Queued(queue, key, priority)


def queue_row(row: Sequence[Any]) -> QueueRow:
    """Return a queue as it stands."""
    name, concurrency, key_concurrency, runs, seconds, paused, pending, running = row
    limits = QueueLimits(
        concurrency=concurrency,
        key_concurrency=key_concurrency,
        rate_runs=runs,
        rate_seconds=seconds,
    )
    return QueueRow(name, limits, bool(paused), pending, running)


def limits_row(name: str, limits: QueueLimits) -> dict[str, Any]:
    """Return the limits of a queue as the parameters of the statement that writes them."""
    return {"name": name, **msgspec.structs.asdict(limits)}


def places_of(rows: Iterable[Sequence[Any]], limit: int) -> list[QueuePlaces]:
    """Return the queues that have a place, for no more than `limit` runs each."""
    found: list[QueuePlaces] = []
    for name, concurrency, key_concurrency, rate_runs, running, begun in rows:
        free = limit if concurrency is None else min(limit, concurrency - running)
        fresh = free if rate_runs is None else max(0, rate_runs - begun)
        if free > 0:
            found.append(QueuePlaces(name, key_concurrency, free, fresh))
    return found


def choose(
    queues: Iterable[QueuePlaces], waiting: Iterable[QueuedRun], limit: int
) -> Sequence[int]:
    """Return the numbers of the runs that are claimed, at most `limit`, the first ones first."""
    places: Mapping[str, QueuePlaces] = {queue.name: queue for queue in queues}
    held: dict[tuple[str, str], int] = {}
    chosen: list[int] = []
    for run in sorted(waiting, key=lambda run: (-run.priority, run.run_number)):
        queue = places[run.queue]
        if len(chosen) == limit:
            break
        if not queue.free or (run.fresh and not queue.fresh):
            continue
        if run.key is not None and queue.key_concurrency is not None:
            taken = held.get((run.queue, run.key), run.held)
            if taken >= queue.key_concurrency:
                continue
            held[run.queue, run.key] = taken + 1
        queue.free -= 1
        queue.fresh -= run.fresh
        chosen.append(run.run_number)
    return chosen
