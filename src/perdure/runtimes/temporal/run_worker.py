from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorAutoscaling, Worker

from perdure.engine.dispatch import Driver
from perdure.errors import RuntimeUnreachable
from perdure.observe import log
from perdure.runtimes.temporal.connection import Connection
from perdure.runtimes.temporal.run_activity import drive_activity
from perdure.runtimes.temporal.run_workflow import RunWorkflow

_BEAT_SECONDS: Final = timedelta(seconds=2)
_AGAIN_SECONDS: Final = 1.0
_FEW_POLLS: Final = PollerBehaviorAutoscaling(minimum=1, maximum=20, initial=1)
_ENDING_SECONDS: Final = 3.0
"""How long closing waits at most for the workflows of runs that have ended in that time."""


class RunWorker:
    """Polls task queues for runs, and has a driver execute them.

    `workflow_of` returns the id of a run's workflow.
    """

    def __init__(self, connection: Connection, workflow_of: Callable[[str], str]) -> None:
        self._connection = connection
        self._workflow_of = workflow_of
        self._polling: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, Worker] = {}
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._ended: dict[str, float] = {}

    @property
    def queues(self) -> list[str]:
        """The task queues that are polled."""
        return list(self._polling)

    def poll(self, queue: str, driver: Driver, concurrency: int) -> None:
        """Poll a task queue, unless that is done already, and execute up to so many runs of it."""
        if queue not in self._polling and not self._closing:
            task = asyncio.create_task(self._poll(queue, driver, concurrency))
            self._polling[queue] = task

    async def close(self) -> None:
        """Stop polling, and wait until the attempts under way were answered."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await self._see_ends()
        await asyncio.gather(*(worker.shutdown() for worker in self._workers.values()))
        if self._polling:
            await asyncio.wait(self._polling.values())

    async def _poll(self, queue: str, driver: Driver, concurrency: int) -> None:
        while not self._closing:
            try:
                worker = Worker(
                    await self._connection.client(),
                    task_queue=queue,
                    workflows=[RunWorkflow],
                    # Without one, the code of all modules is hashed here, which takes seconds.
                    build_id=queue,
                    activities=[drive_activity(driver, lambda: self._closing, self._note_end)],
                    max_concurrent_activities=concurrency,
                    # Histories are short, and what a worker that died had kept is waited for.
                    max_cached_workflows=0,
                    max_heartbeat_throttle_interval=_BEAT_SECONDS,
                    # What the server hands to the poll of a frozen worker is lost for a while.
                    workflow_task_poller_behavior=_FEW_POLLS,
                    activity_task_poller_behavior=_FEW_POLLS,
                    # Attempts end once the worker has stopped their runs, in its own time.
                    graceful_shutdown_timeout=timedelta(days=1),
                )
                self._workers[queue] = worker
                await worker.run()
            except Exception as error:  # noqa: BLE001 - polling goes on when the server is back
                log.error("task queue %s is polled again later: %s", queue, error)
                await asyncio.sleep(_AGAIN_SECONDS)

    def _note_end(self, run_id: str) -> None:
        now = self._loop.time()
        self._ended[run_id] = now
        while now - next(iter(self._ended.values())) > _ENDING_SECONDS:
            del self._ended[next(iter(self._ended))]

    async def _see_ends(self) -> None:
        """Wait for the workflows of runs that ended just now: another worker might never come."""
        since = self._loop.time() - _ENDING_SECONDS
        for run_id in [name for name, at in self._ended.items() if at > since]:
            with suppress(WorkflowFailureError, RPCError, RuntimeUnreachable):
                client = await self._connection.client()
                await client.get_workflow_handle(self._workflow_of(run_id)).result()
