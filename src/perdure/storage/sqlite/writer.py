from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from perdure.errors import EngineClosed, StorageBusy
from perdure.storage.sqlite.checkpoint import Checkpointer
from perdure.storage.sqlite.failures import storage_error

T = TypeVar("T")
Result = tuple[Any, Exception | None]

_SLOW_COMMIT_SECONDS: Final = 0.002
_FEW_WRITES: Final = 16
_LAST_WEIGHT: Final = 0.2


class _Write(Generic[T]):
    """A job that waits for a commit, and what came of it; `future` is for who waits long."""

    __slots__ = ("future", "job", "result", "what")

    def __init__(self, job: Callable[[sqlite3.Connection], T], what: str) -> None:
        self.job = job
        self.what = what
        self.result: Result | None = None
        self.future: asyncio.Future[None] | None = None

    def settle(self, result: Result) -> None:
        self.result = result
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Writer:
    """The one writing connection of a process: commits what waits as one transaction.

    All writes that become ready in one turn of the event loop share a commit, and so an fsync;
    the first of their callers that gets its next turn commits for all of them.
    A commit of few writes runs in the loop itself as long as the disk answers within two
    milliseconds, which saves two thread hops. When there are many or the disk is slower, or when
    another process holds the write lock, the writer's thread commits, and the loop goes on.
    """

    def __init__(
        self, connection: sqlite3.Connection, busy_seconds: float, probe: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._checkpointer = Checkpointer(connection)
        self._busy_seconds = busy_seconds
        self._probe = probe
        self._ready: list[_Write[Any]] = []
        self._handed: queue.SimpleQueue[list[_Write[Any]] | None]
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
        write = _Write(job, what)
        self._ready.append(write)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._loop.call_soon(self._flush)
            raise
        if write.result is None:
            self._flush()
        if write.result is None:
            write.future = self._loop.create_future()
            await write.future
        return _outcome(write)

    async def close(self) -> None:
        """Commit what waits and end the thread; the connection stays the caller's to close."""
        self._closed = True
        self._flush()
        self._handed.put(None)
        await asyncio.to_thread(self._thread.join)

    def _flush(self) -> None:
        batch, self._ready = self._ready, []
        if not batch:
            return None
        # Nothing may overtake what the thread still holds: one connection, one order.
        if not self._in_thread and self._is_quick(batch):
            try:
                results = self._transact(batch)
            except Exception:  # noqa: BLE001 - the thread tries again and tells each its error
                results = None
            if results is not None:
                return self._settle(batch, results)
        self._hand_over(batch)
        return None

    def _is_quick(self, batch: Sequence[_Write[Any]]) -> bool:
        return len(batch) <= _FEW_WRITES and self._commit_seconds < _SLOW_COMMIT_SECONDS

    def _hand_over(self, batch: list[_Write[Any]]) -> None:
        self._in_thread += 1
        self._handed.put(batch)

    def _work(self) -> None:
        while (batch := self._handed.get()) is not None:
            batches = 1
            with contextlib.suppress(queue.Empty):
                while (more := self._handed.get_nowait()) is not None:
                    batch.extend(more)
                    batches += 1
                self._handed.put(None)
            results = self._commit_patiently(batch) if batch else ()
            self._loop.call_soon_threadsafe(self._settle, batch, results)
            if self._checkpointer.due():
                self._checkpointer.fold()
            self._loop.call_soon_threadsafe(self._take_back, batches)

    def _take_back(self, batches: int) -> None:
        self._in_thread -= batches

    def _settle(self, batch: Sequence[_Write[Any]], results: Sequence[Result]) -> None:
        if self._checkpointer.due() and not self._in_thread:
            # The thread folds the log, so that the loop does not stand still for it.
            self._hand_over([])
        for write, result in zip(batch, results, strict=True):
            write.settle(result)

    def _commit_patiently(self, batch: Sequence[_Write[Any]]) -> Sequence[Result]:
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

    def _transact(self, batch: Sequence[_Write[Any]]) -> Sequence[Result]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                results = [(write.job(connection), None) for write in batch]
                for write in batch:
                    self._probe(f"commit.begin {write.what}")
                began = time.perf_counter()
                connection.execute("COMMIT")
                taken = time.perf_counter() - began
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise storage_error(error) from error
        self._checkpointer.count(len(batch))
        self._commit_seconds += (taken - self._commit_seconds) * _LAST_WEIGHT
        for write in batch:
            self._probe(f"commit.done {write.what}")
        return results


def _outcome(write: _Write[T]) -> T:
    assert write.result is not None
    value, error = write.result
    if error is not None:
        raise error
    return value
