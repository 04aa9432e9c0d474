from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from perdure.engine.store import RunEnd, RunRow, RunStore
from perdure.errors import (
    EngineClosed,
    KeyUnavailable,
    PerdureError,
    StorageCorrupt,
    StorageMissing,
    UnknownRun,
)
from perdure.ids import is_identifier

_LOOK_SECONDS: Final = 1.0

_UNREADABLE: Final = (KeyUnavailable, StorageCorrupt, StorageMissing)
"""What reading a result raises that is not there, or not for this process."""


class Ends:
    """Tells those who wait for runs how these ended, wherever they were executed."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._waiting: dict[str, list[asyncio.Future[RunEnd]]] = {}
        self._loop = asyncio.get_running_loop()
        self._looked_at = float("-inf")
        self._looked_for = 0

    @property
    def awaited(self) -> Sequence[str]:
        """The runs that somebody waits for."""
        return list(self._waiting)

    async def wait(self, run_id: str) -> RunEnd:
        """Wait until a run has ended, or needs attention.

        Raises `EngineClosed`, `UnknownRun` for one that is not there any more, or what keeps its
        end from being read.
        """
        future: asyncio.Future[RunEnd] = self._loop.create_future()
        self._waiting.setdefault(run_id, []).append(future)
        try:
            return await future
        finally:
            self._forget(run_id, future)

    def settle(self, run_id: str, end: RunEnd) -> None:
        """Tell who waits for a run how it ended, if that is an end."""
        if not end.state.settled:
            return
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(end)

    def close(self) -> None:
        """Tell all who wait that nobody will know here."""
        for future in (future for futures in self._waiting.values() for future in futures):
            if not future.done():
                future.set_exception(EngineClosed("the App was closed before the run ended"))

    async def look(self, executes: Callable[[str], bool]) -> None:
        """Look how runs stand that somebody waits for, but for those that this worker `executes`.

        Of these it says itself how they end. Raises a `StorageError`.
        """
        elsewhere = [run_id for run_id in self._waiting if not executes(run_id)]
        if elsewhere:
            try:
                rows = await self._store.read_settled(elsewhere)
            except _UNREADABLE:
                rows = await self._readable(elsewhere)
            for row in rows:
                self.settle(row.run_id, end_of(row))
            await self._look_for_gone(elsewhere)

    async def _look_for_gone(self, run_ids: Sequence[str]) -> None:
        """Tell who waits for a run that is not there any more; one is looked for a second."""
        if self._loop.time() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = self._loop.time()
        self._looked_for += 1
        run_id = run_ids[self._looked_for % len(run_ids)]
        with suppress(*_UNREADABLE):
            if await self._store.read_run(run_id) is None:
                self._refuse(run_id, unknown_run(run_id))

    def _refuse(self, run_id: str, error: PerdureError) -> None:
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_exception(error)

    async def _readable(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of some runs that are settled; tell who waits for one that is unreadable."""
        rows: list[RunRow] = []
        for run_id in run_ids:
            try:
                rows += await self._store.read_settled([run_id])
            except _UNREADABLE as error:
                self._refuse(run_id, error)
        return rows

    def _forget(self, run_id: str, future: asyncio.Future[RunEnd]) -> None:
        waiting = self._waiting.get(run_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(run_id, None)


def end_of(row: RunRow) -> RunEnd:
    """Return how a run ended, as its row says."""
    return RunEnd(row.state, row.output_json, row.problem, tombstone=row.tombstone)


def unknown_run(run_id: str) -> UnknownRun:
    """Return what is raised for a run that is not there."""
    return UnknownRun(f"there is no run {run_id!r} in this store")


def possible_run(run_id: str) -> str:
    """Return what may be a run's id; a text that no store takes names no run."""
    if not is_identifier(run_id):
        raise unknown_run(run_id)
    return run_id
