from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

import msgspec
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.errors import JournalError
from perdure.runtimes.temporal.heartbeats import heartbeats
from perdure.runtimes.temporal.names import PERDURE, ZIGAI
from perdure.runtimes.temporal.operation import ForeignOperation, Operation
from perdure.runtimes.temporal.payload import carried_bytes, document_value, invocation_of
from perdure.sidecar.config import SidecarConfig
from perdure.sidecar.failures import HandlerFailed
from perdure.sidecar.handling import Key, Perform
from perdure.sidecar.metrics import Metrics

_GARBAGE_BYTES: Final = 33_554_432
_encode: Final = msgspec.json.Encoder().encode


def sidecar_worker(
    client: Client, config: SidecarConfig, performing: Mapping[Key, Perform], metrics: Metrics
) -> Worker:
    """Return the worker that performs the operations of a sidecar, under all of their names.

    An attempt that fails is followed by others, as the request says, unless it failed for good.
    """
    attempts = _Attempts(
        performing, metrics, carried_bytes(client.data_converter, config.max_record_bytes)
    )
    return Worker(
        client,
        task_queue=config.task_queue,
        workflows=[Operation, ForeignOperation],
        activities=[attempts.activity(names.activity) for names in (PERDURE, ZIGAI)],
        max_concurrent_activities=config.limits.operations,
        max_concurrent_workflow_tasks=config.limits.operations,
        # A workflow holds its request for as long as it is kept, and has two tasks in all.
        max_cached_workflows=2 * config.limits.operations,
        graceful_shutdown_timeout=timedelta(seconds=config.limits.drain_seconds),
    )


class _Attempts:
    """Makes the attempts of operations."""

    def __init__(
        self, performing: Mapping[Key, Perform], metrics: Metrics, limit_bytes: int
    ) -> None:
        self._performing = performing
        self._metrics = metrics
        self._limit_bytes = limit_bytes
        self._garbage_bytes = 0

    def activity(self, name: str) -> Callable[[RawValue], Awaitable[RawValue]]:
        """Return the activity that makes an attempt, under a name."""

        @activity.defn(name=name)
        async def execute(argument: RawValue) -> RawValue:
            with self._metrics.running.track_inprogress():
                try:
                    value = await self._make(argument)
                except HandlerFailed as error:
                    self._metrics.attempts.labels(error.name).inc()
                    raise ApplicationError(
                        str(error), type=error.name, non_retryable=error.permanent
                    ) from None
            self._metrics.attempts.labels("record").inc()
            return value

        return execute

    async def _make(self, argument: RawValue) -> RawValue:
        try:
            invocation = invocation_of(argument)
        except JournalError as error:
            raise HandlerFailed(type(error).__name__, str(error), permanent=True) from error
        perform = self._performing.get((invocation.kind, invocation.handler_id))
        if perform is None:  # another sidecar of this queue may have it
            raise HandlerFailed(
                "MissingHandler",
                f"there is no {invocation.kind} handler {invocation.handler_id!r} here",
            )
        limit = activity.info().start_to_close_timeout
        assert limit is not None  # the workflow sets it
        async with heartbeats():
            printed = await perform(invocation, limit.total_seconds())
        # The server would refuse it only now that the handler has acted, and have it act again.
        document = _encode(printed.decode())
        if len(document) > self._limit_bytes:
            raise HandlerFailed(
                "WorkerOutputTooLarge",
                f"the record has {len(document)} bytes as JSON, and Temporal carries"
                f" {self._limit_bytes}",
                permanent=True,
            )
        self._sweep(len(document))
        return document_value(document)

    def _sweep(self, size: int) -> None:
        """Collect what workflows of this process leave behind, before that is much.

        They refer to themselves, and the collector counts their objects, which are few, and not
        their documents, which are large.
        """
        self._garbage_bytes += size
        if self._garbage_bytes > _GARBAGE_BYTES:
            self._garbage_bytes = 0
            gc.collect()
