from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from perdure.engine.queues import QueueLimits, QueueRow
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.hints import Hints
from perdure.storage.queue_places import (
    QueuedRun,
    QueuePlaces,
    choose,
    limits_row,
    places_of,
    queue_row,
)

_Row = tuple[Any, ...]
_Query = Callable[[str, Mapping[str, Any]], Awaitable[list[_Row]]]


class PostgresQueues:
    """What bounds the claims of one PostgreSQL schema."""

    hints: Hints

    def __init__(self, database: Database) -> None:
        self._db = database

    async def declare_queue(self, name: str, limits: QueueLimits) -> None:
        """Write a queue, or the limits of one that is there.

        Durable when it returns: the queue, fsynced.
        """
        await self._change_queue("declare_queue", limits_row(name, limits))

    async def list_queues(self) -> Sequence[QueueRow]:
        """Return the queues, by name."""
        return [queue_row(row) for row in await self._db.read("list_queues")]

    async def pause_queue(self, name: str) -> bool:
        """Let no run of a queue be claimed; return whether there is one.

        Durable when it returns: the pause, fsynced.
        """
        return await self._change_queue("pause_queue", {"name": name})

    async def resume_queue(self, name: str) -> bool:
        """Let the runs of a queue be claimed again; return whether there is one.

        Durable when it returns: the resumption, fsynced.
        """
        return await self._change_queue("release_queue", {"name": name})

    async def take_queued(self, row: Mapping[str, Any]) -> list[_Row]:
        """Claim what queues let through, of those that the row names or of any.

        Durable when it returns: the claims, fsynced.
        """

        async def query(name: str, parameters: Mapping[str, Any]) -> list[_Row]:
            return await self._db.read(name, **parameters)

        # First without a lock: what waits for a place is looked at often.
        names, numbers = await _chosen(query, {**row, "now": self._db.clock.now()})
        if not numbers:
            return []

        async def job(transaction: Transaction, again: bool) -> list[_Row]:  # noqa: FBT001
            if again and (found := await transaction.run("claimed_before", row)):
                return found
            locked = await transaction.run("lock_queues", {**row, "queues": names})
            # Not before: it may have waited for others that claim.
            now = self._db.clock.now()
            known = {**row, "now": now, "queues": [name for (name,) in locked]}
            _, numbers = await _chosen(transaction.run, known)
            return await transaction.run("claim_queued", {**known, "numbers": [*numbers]})

        return await self._db.transact(job, "claim_queued")

    async def _change_queue(self, query: str, row: Mapping[str, Any]) -> bool:
        changed = await self._db.write(query, row, f"{query} {row['name']}")
        self.hints.tell()
        return bool(changed)


async def _chosen(query: _Query, row: Mapping[str, Any]) -> tuple[list[str], Sequence[int]]:
    """Return the queues that have places, and the numbers of the runs that they let through."""
    queues = places_of(await query("open_queues", row), row["limit"])
    waiting = [run for queue in queues for run in await _waiting(query, queue, row)]
    return [queue.name for queue in queues], choose(queues, waiting, row["limit"])


async def _waiting(query: _Query, queue: QueuePlaces, row: Mapping[str, Any]) -> list[QueuedRun]:
    found: list[QueuedRun] = []
    for fresh in (False, True) if queue.fresh else (False,):
        wanted = {
            **row,
            "queue": queue.name,
            "key_concurrency": queue.key_concurrency,
            "fresh": fresh,
            "limit": queue.free,
        }
        name = "next_queued" if queue.key_concurrency is None else "next_keyed"
        for number, key, priority, held in await query(name, wanted):
            found.append(QueuedRun(number, queue.name, key, fresh, priority, held))
    return found
