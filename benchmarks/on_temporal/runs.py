from __future__ import annotations

import asyncio
import time
from typing import Final

from temporalio.client import Client

from benchmarks.on_temporal.use import PAYLOAD, Use
from benchmarks.work import echo
from perdure import App, Context, RunState, WorkerOptions

PUT_AWAY: Final = WorkerOptions(linger_seconds=0.0)
"""A run that waits is nothing but rows, at once."""


class EmbeddedRuns(Use):
    """A run whose function performs the operations, on the embedded engine."""

    label = "a run on the embedded engine"

    def __init__(self, client: Client, address: str, store: str) -> None:
        super().__init__(client, address)
        self.store = store

    def app(self) -> App:
        """Return the App that executes the runs."""
        return App(self.store, worker=PUT_AWAY)

    async def open(self) -> None:
        self._app = self.app()

        @self._app.run(version=1)
        async def sequence(context: Context, operations: int) -> list[float]:
            times: list[float] = []
            for _ in range(operations):
                began = time.perf_counter()
                await context.call(echo, PAYLOAD)
                times.append(time.perf_counter() - began)
            return times

        @self._app.run(version=1)
        async def woken(context: Context) -> str:
            return await context.call(echo, await context.wait_for("message"))

        await self.stack.enter_async_context(self._app)

    async def sequence(self, name: str, operations: int) -> list[float]:
        handle = await self._app.start("sequence", operations, run_id=name)
        times: list[float] = await handle.result()
        return times

    async def single(self, name: str) -> float:
        """Return the seconds from the start of a run of one operation to its result."""
        began = time.perf_counter()
        await self.sequence(name, 1)
        return time.perf_counter() - began

    async def wake(self, name: str) -> float:
        """Return the seconds from a message to a run that is put away to the end of the run."""
        handle = await self._app.start("woken", run_id=name)
        while await handle.status() is not RunState.SUSPENDED:
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        await self._app.send(name, "message", PAYLOAD)
        await handle.result()
        return time.perf_counter() - began

    def workflows(self, name: str, operations: int) -> list[str]:
        return []


class Runs(EmbeddedRuns):
    """The same on Temporal: a workflow for each run, and a store for all else."""

    label = "a run on Temporal"

    def app(self) -> App:
        """Return the App that executes the runs."""
        url = f"temporal://{self.address}/default?task_queue=runs"
        return App(url, store=self.store, worker=PUT_AWAY)

    def workflows(self, name: str, operations: int) -> list[str]:
        return [f"runs/{name}"]
