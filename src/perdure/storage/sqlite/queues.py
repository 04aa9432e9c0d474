from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.engine.queues import QueueLimits, QueueRow
from perdure.storage.queue_places import (
    QueuedRun,
    QueuePlaces,
    choose,
    limits_row,
    places_of,
    queue_row,
)
from perdure.storage.sqlite.database import Database

_Query = Callable[[str, Mapping[str, Any]], list[Any]]


class SqliteQueues:
    """What bounds the claims of one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def declare_queue(self, name: str, limits: QueueLimits) -> None:
        """Write a queue, or the limits of one that is there.

        Durable when it returns: the queue, fsynced.
        """
        await self._change_queue("declare_queue", limits_row(name, limits))

    async def list_queues(self) -> Sequence[QueueRow]:
        """Return the queues, by name."""
        return [queue_row(row) for row in self._db.read("list_queues")]

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

    def lets_through(self, row: Mapping[str, Any]) -> bool:
        """Return whether any run could be claimed now that waits in a queue."""

        def query(name: str, parameters: Mapping[str, Any]) -> list[Any]:
            return self._db.read(name, **parameters)

        return bool(_chosen(query, {**row, "now": self._db.clock.now()}))

    def take_queued(
        self, connection: sqlite3.Connection, row: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Claim what queues let through, within a transaction that nobody else writes beside."""

        def query(name: str, parameters: Mapping[str, Any]) -> list[Any]:
            return self._db.run(connection, name, parameters).fetchall()

        if query("worker_stands", row) == [(0,)]:
            return []
        numbers = _chosen(query, row)
        place = {number: place for place, number in enumerate(numbers)}
        listed = {**row, "numbers": msgspec.json.encode(numbers).decode()}
        return sorted(query("claim_queued", listed), key=lambda claimed: place[claimed[0]])

    async def _change_queue(self, query: str, row: Mapping[str, Any]) -> bool:
        return await self._db.write(
            lambda connection: self._db.run(connection, query, row).rowcount == 1,
            f"{query} {row['name']}",
        )


def _chosen(query: _Query, row: Mapping[str, Any]) -> Sequence[int]:
    queues = places_of(query("open_queues", row), row["limit"])
    waiting = [run for queue in queues for run in _waiting(query, queue, row)]
    return choose(queues, waiting, row["limit"])


def _waiting(query: _Query, queue: QueuePlaces, row: Mapping[str, Any]) -> list[QueuedRun]:
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
        for number, key, priority, held in query(name, wanted):
            found.append(QueuedRun(number, queue.name, key, fresh, priority, held))
    return found
