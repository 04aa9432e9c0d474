from __future__ import annotations

import asyncio
from typing import Final

from perdure.engine.dispatch import Dispatcher, Rested
from perdure.engine.dispatched import wake
from perdure.engine.ends import unknown_run
from perdure.engine.registry import Registry
from perdure.engine.store import RunRow, RunState, RunStore
from perdure.engine.worker import Worker

LOOK_SECONDS: Final = 1.0
"""How often runs are looked for that wait although nobody is asked to execute them."""

FINISH_SECONDS: Final = 30.0
"""How often a dispatcher is asked for what it thinks has not ended."""

_PAGE: Final = 100
_NO_NUMBER: Final = 2**63
_AGAIN_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 0.25


class Driving:
    """Executes what a dispatcher asks for, and tells it of runs that wait unnoticed.

    Those are runs whose writer died before it could tell, and whatever is written by others: an
    effect that was settled, an import, a program that does not know the dispatcher. Those may also
    end runs that wait.
    """

    def __init__(
        self,
        store: RunStore,
        worker: Worker,
        dispatcher: Dispatcher,
        registry: Registry,
        concurrency: int,
    ) -> None:
        self._store = store
        self._worker = worker
        self._dispatcher = dispatcher
        self._registry = registry
        self._concurrency = concurrency
        self._after = 0
        self._finished_at = float("-inf")
        self._known: dict[tuple[int, int], float] = {}

    async def drive(self, run_id: str) -> Rested | None:
        """Execute a run until it rests, and return how it stands then; None where it cannot be.

        What is before it in its queue is executed first.
        Durable when it returns: how the run stands. Raises `UnknownRun` or a `StorageError`.
        """
        while True:
            if (execution := self._worker.execution(run_id)) is None:
                row = await self._woken(run_id)
                if row.state is RunState.PENDING:
                    queue = None if row.queued is None else row.queued.queue
                    execution = await self._worker.take(run_id, queue)
                elif not row.state.executed:
                    return await self._rested(row)
                if execution is None:
                    return None
            await asyncio.wait([execution])

    async def cancel(self, run_id: str) -> None:
        """Ask for the end of a run and of those below it. Durable when it returns, fsynced."""
        await self._store.request_cancel(run_id)

    async def look(self) -> None:
        """Tell the dispatcher of runs that have waited since the last look, page by page.

        Now and then, tell it of those that ended without its hearing of that.
        """
        await self._dispatcher.serve(self, self._registry.served(), self._concurrency)
        await self._look_at_waiting()
        now = self._store.clock.monotonic()
        if now - self._finished_at >= FINISH_SECONDS:
            self._finished_at = now
            unfinished = await self._dispatcher.unfinished()
            for run_id in {*unfinished} - {*await self._store.live_runs(unfinished)}:
                await self._dispatcher.finish(run_id)

    async def _look_at_waiting(self) -> None:
        after, page = self._after, await self._store.waiting_runs(limit=_PAGE, after=self._after)
        last = page[-1].number if len(page) == _PAGE else _NO_NUMBER
        self._after = 0 if last == _NO_NUMBER else last
        known = self._known
        # What is not among them any more is new when it waits again.
        self._known = {key: seen for key, seen in known.items() if not after < key[0] <= last}
        now = self._store.clock.monotonic()
        for run in page:
            key = run.number, run.generation
            # Whoever made it wait tells the dispatcher, and needs a moment for that.
            seen_at = known.get(key, now - _AGAIN_SECONDS + LOOK_SECONDS)
            tell = now - seen_at >= _AGAIN_SECONDS and self._worker.execution(run.run_id) is None
            told = tell and await self._dispatcher.ensure(run)
            self._known[key] = now if told else seen_at

    async def _rested(self, row: RunRow) -> Rested:
        if row.state is RunState.CANCELLED:
            # Whoever asked for that may not have told the dispatcher.
            await self._dispatcher.cancel(row.run_id)
        if row.state.ended:
            if row.parent is not None:
                await wake(self._dispatcher, await self._store.read_run(row.parent))
            return Rested(row.state)
        until = _until(row)
        if until is None:
            return Rested(row.state)
        return Rested(row.state, max(until - self._store.clock.now(), _LEAST_SECONDS))

    async def _woken(self, run_id: str) -> RunRow:
        row = await self._row(run_id)
        if (until := _until(row)) is not None and until <= self._store.clock.now():
            # A worker's sweep would do it a moment later.
            await self._store.wake_runs()
            row = await self._row(run_id)
        return row

    async def _row(self, run_id: str) -> RunRow:
        row = await self._store.read_run(run_id)
        if row is None:
            raise unknown_run(run_id)
        return row


def _until(row: RunRow) -> float | None:
    """Return when a run goes on by itself, in wall seconds, UTC; None if it does not."""
    if row.state not in {RunState.SLEEPING, RunState.SUSPENDED}:
        return None
    times = [at for at in (row.wake_at, row.deadline_at) if at is not None]
    return min(times, default=None)
