from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from perdure.errors import EngineClosed, StorageBusy
from perdure.storage.sqlite.failures import storage_error

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
Waiting = tuple[Job, asyncio.Future[Any], str]
Result = tuple[Any, Exception | None]

_SLOW_COMMIT_SECONDS: Final = 0.002
_LAST_WEIGHT: Final = 0.2


class Writer:
    """The one writing connection of a process: commits what waits as one transaction.

    All writes that become ready in one turn of the event loop share a commit, and so an fsync.
    A commit runs in the loop itself as long as the disk answers within two milliseconds, which
    saves two thread hops; when it is slower, or another process holds the write lock, the
    writer's thread commits, and the loop goes on.
    """

    def __init__(
        self, connection: sqlite3.Connection, busy_seconds: float, probe: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._busy_seconds = busy_seconds
        self._probe = probe
        self._ready: list[Waiting] = []
        self._handed: queue.SimpleQueue[list[Waiting] | None]
        self._handed = queue.SimpleQueue()
        self._in_thread = 0
        self._commit_seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="perdure-writer", daemon=True)
        self._thread.start()
        self._closed = False

    async def write(self, job: Callable[[sqlite3.Connection], T], what: str) -> T:
        """Run a job inside a write transaction and return what it returned.

        `what` names the write to the probe.

        Durable when it returns: what the job wrote, fsynced.
        If it raises: nothing of the job was written. A cancelled caller's job is still written.
        """
        if self._closed:
            raise EngineClosed("the store is closed; use the App inside `async with app:`")
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append((job, future, what))
        return await future

    async def close(self) -> None:
        """Commit what waits and end the thread; the connection stays the caller's to close."""
        self._closed = True
        self._flush()
        self._handed.put(None)
        await asyncio.to_thread(self._thread.join)

    def _flush(self) -> None:
        batch, self._ready = self._ready, []
        # Nothing may overtake what the thread still holds: one connection, one order.
        if batch and not self._in_thread and self._commit_seconds < _SLOW_COMMIT_SECONDS:
            try:
                results = self._transact(batch)
            except Exception:  # noqa: BLE001 - the thread tries again and tells each its error
                results = None
            if results is not None:
                return _settle(batch, results)
        self._in_thread += len(batch)
        self._handed.put(batch)
        return None

    def _work(self) -> None:
        while (batch := self._handed.get()) is not None:
            with contextlib.suppress(queue.Empty):
                while (more := self._handed.get_nowait()) is not None:
                    batch.extend(more)
                self._handed.put(None)
            results = self._commit_patiently(batch)
            self._loop.call_soon_threadsafe(self._settle_handed, batch, results)

    def _settle_handed(
        self, batch: Sequence[Waiting], results: Sequence[Result]
    ) -> None:
        self._in_thread -= len(batch)
        _settle(batch, results)

    def _commit_patiently(self, batch: Sequence[Waiting]) -> Sequence[Result]:
        deadline = time.monotonic() + self._busy_seconds
        pause = 0.0005
        while True:
            try:
                return self._transact(batch)
            except StorageBusy as busy:
                if time.monotonic() > deadline:
                    return [(None, busy)] * len(batch)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for the write
                if len(batch) == 1:
                    return [(None, error)]
                # One job's failure must not undo its neighbours'.
                return [result for one in batch for result in self._commit_patiently([one])]
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _transact(self, batch: Sequence[Waiting]) -> Sequence[Result]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                results = [(job(connection), None) for job, _, _ in batch]
                for _, _, what in batch:
                    self._probe(f"commit.begin {what}")
                began = time.perf_counter()
                connection.execute("COMMIT")
                taken = time.perf_counter() - began
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise storage_error(error) from error
        self._commit_seconds += (taken - self._commit_seconds) * _LAST_WEIGHT
        for _, _, what in batch:
            self._probe(f"commit.done {what}")
        return results


def _settle(batch: Sequence[Waiting], results: Sequence[Result]) -> None:
    for (_, future, _), (value, error) in zip(batch, results, strict=True):
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
