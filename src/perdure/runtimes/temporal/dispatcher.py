from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.engine.dispatch import Driver, WaitingRun
from perdure.errors import RuntimeUnreachable
from perdure.observe import log
from perdure.runtimes.temporal.address import Address
from perdure.runtimes.temporal.connection import Connect, Connection
from perdure.runtimes.temporal.run_documents import WAKE, WORKFLOW, RunRequest, request_value
from perdure.runtimes.temporal.run_worker import RunWorker
from perdure.runtimes.temporal.search import attributes_of

_ASK_SECONDS: Final = timedelta(seconds=5)
_DOWN_SECONDS: Final = 5.0
"""For how long nobody waits for a server that did not answer."""

_PAGE: Final = 1000


class TemporalDispatcher:
    """Has runs executed through workflows, one for each run, on one task queue for each version.

    A workflow's id is the run's behind the name of the task queue, so that two systems share a
    namespace. A worker may be silent for `lease_seconds` until another one gets its runs, where the
    address says nothing else. `connect` is that of `Connection`.
    """

    def __init__(self, address: Address, connect: Connect | None, lease_seconds: float) -> None:
        self._task_queue = address.task_queue
        self._heartbeat_seconds = address.heartbeat_seconds or lease_seconds
        # A worker that dies has tasks of workflows in its hands, too.
        seconds = min(max(self._heartbeat_seconds, 2.0), 10.0)
        self._task_timeout = timedelta(seconds=seconds)
        self._connection = Connection(address, connect)
        self._worker = RunWorker(self._connection, self._workflow)
        self._loop = asyncio.get_running_loop()
        self._down_until = float("-inf")
        self._listed_to: bytes | None = None

    async def open(self) -> None:
        """Connect to the server before anything is asked of it; raises `RuntimeUnreachable`."""
        await self._connection.check_namespace()

    async def serve(
        self, driver: Driver, served: Sequence[tuple[str, int]], concurrency: int
    ) -> None:
        """Poll the task queues of functions and versions, and execute their runs.

        Called again and again: what is polled already stays so.
        """
        for function, version in served:
            self._worker.poll(self._queue(function, version), driver, concurrency)

    async def wake(self, run: WaitingRun) -> None:
        """Start the workflow of a run, or tell it that the run may go on."""
        await self._reach(run.run_id, lambda client: self._start(client, run))

    async def ensure(self, run: WaitingRun) -> bool:
        """The same, unless its workflow has asked a worker for it; return whether it is so now."""

        async def ensured(client: Client) -> None:
            handle = client.get_workflow_handle(self._workflow(run.run_id))
            try:
                found = await handle.describe(rpc_timeout=_ASK_SECONDS)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                if found.status is WorkflowExecutionStatus.RUNNING:
                    if self._is_another(found, run):
                        await handle.terminate("its run id is another run's now")
                    elif found.raw_description.pending_activities:
                        return
            await self._start(client, run)

        return await self._reach(run.run_id, ensured)

    async def unfinished(self) -> Sequence[str]:
        """Return some of the runs with an open workflow on the queues that are polled here."""
        queues = ", ".join(f"'{queue}'" for queue in self._worker.queues)
        if not queues:
            return []
        found: list[str] = []

        async def listed(client: Client) -> None:
            pages = client.list_workflows(
                f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running'"
                f" AND TaskQueue IN ({queues})",
                page_size=_PAGE,
                next_page_token=self._listed_to,
                rpc_timeout=_ASK_SECONDS,
            )
            self._listed_to = None
            await pages.fetch_next_page(page_size=_PAGE)
            self._listed_to = pages.next_page_token
            prefix = self._workflow("")
            found.extend(each.id.removeprefix(prefix) for each in pages.current_page or ())

        await self._reach("that ended", listed)
        return found

    async def finish(self, run_id: str) -> None:
        """Tell the workflow of a run that it is over."""
        handle = self._workflow(run_id)
        await self._reach(
            run_id,
            lambda client: client.get_workflow_handle(handle).signal(
                WAKE, rpc_timeout=_ASK_SECONDS
            ),
        )

    async def cancel(self, run_id: str) -> None:
        """Cancel the workflow of a run, which then sees the run to its end."""
        handle = self._workflow(run_id)
        await self._reach(
            run_id,
            lambda client: client.get_workflow_handle(handle).cancel(rpc_timeout=_ASK_SECONDS),
        )

    async def close(self) -> None:
        """Stop polling, and wait until the attempts under way were answered."""
        await self._worker.close()

    async def _start(self, client: Client, run: WaitingRun) -> None:
        searchable = self._connection.searchable
        name = f"{run.function}@{run.version}"
        try:
            await client.start_workflow(
                WORKFLOW,
                request_value(RunRequest(run.run_id, name, self._heartbeat_seconds, searchable)),
                id=self._workflow(run.run_id),
                task_queue=self._queue(run.function, run.version),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=WAKE,
                search_attributes=attributes_of(run) if searchable else None,
                static_summary=name,
                task_timeout=self._task_timeout,
                rpc_timeout=_ASK_SECONDS,
            )
        except RPCError as error:
            if not searchable or error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            self._connection.hide(error)
            await self._start(client, run)

    async def _reach(self, run_id: str, ask: Callable[[Client], Awaitable[object]]) -> bool:
        """Ask the server for something about a run; return whether it answered."""
        if self._loop.time() < self._down_until:
            return False
        try:
            await ask(await self._connection.client())
        except (RPCError, RuntimeUnreachable) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                return True
            self._down_until = self._loop.time() + _DOWN_SECONDS
            log.warning("Temporal hears of run %s later: %s", run_id, error)
            return False
        return True

    def _is_another(self, found: WorkflowExecutionDescription, run: WaitingRun) -> bool:
        """Return whether a workflow is that of an earlier run of the same id, or of no run."""
        ours = found.workflow_type == WORKFLOW
        return ours and found.task_queue != self._queue(run.function, run.version)

    def _queue(self, function: str, version: int) -> str:
        return f"{self._task_queue}:{function}@{version}"

    def _workflow(self, run_id: str) -> str:
        return f"{self._task_queue}/{run_id}"
