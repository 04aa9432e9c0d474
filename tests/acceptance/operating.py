"""Operations on Temporal: handlers that do what their input says, and workers that serve them."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from uuid import uuid4

from temporalio.client import Client

from perdure.journal import (
    Failure,
    Handlers,
    Invocation,
    OperationKind,
    Outcome,
    Success,
    Suspended,
    SuspensionReason,
)
from perdure.journal.payloads import RetryRequest
from perdure.runtimes.temporal import OperationOptions, TemporalRuntime, operation_worker

TOOL = OperationKind.TOOL_CALL
RETRY = OperationKind.RETRY_DELAY
REGISTERED = [(TOOL, "tools"), (RETRY, "delays")]
BRISK = OperationOptions(
    start_to_close_seconds=10,
    schedule_to_close_seconds=15,
    heartbeat_seconds=2.0,
    initial_interval_seconds=0.05,
    maximum_interval_seconds=0.05,
    maximum_attempts=3,
)


class Tools:
    """Handlers that count their calls, and can be held in the middle of one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.handlers = Handlers()
        self.handlers.register(TOOL, "tools", self)
        self.handlers.retry_delay("delays")(self.delay)

    async def __call__(self, invocation: Invocation) -> Outcome:
        self.calls.append(invocation.stable_key)
        self.begun.set()
        match json.loads(invocation.input_json):
            case "refuse":
                return Failure("NoSuchBook", retryable=True)
            case "raise":
                raise ConnectionResetError("the shop went away")
            case "ask":
                return Suspended(SuspensionReason.APPROVAL, b'{"for": "a book"}')
            case "garble":
                return Success(b"{")
            case ["grow", int(size)]:
                return Success(json.dumps("x" * size).encode())
            case "hold":
                await self._held()
            case _:
                pass
        return Success(b'{"of": ' + invocation.input_json + b"}")

    async def delay(self, request: RetryRequest) -> None:
        self.calls.append(f"delay {request.retry_number}")

    async def _held(self) -> None:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Place:
    """A task queue of its own, and run ids that no other test has."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.queue = f"queue-{uuid4().hex}"
        self.run_id = f"run-{uuid4().hex}"

    def runtime(self, options: OperationOptions = BRISK) -> TemporalRuntime:
        return TemporalRuntime(
            self.client, task_queue=self.queue, registrations=REGISTERED, options=options
        )

    def invocation(self, value: object, sequence: int = 1) -> Invocation:
        return Invocation.of(self.run_id, "tool", sequence, TOOL, "tools", value)


async def work_until_killed(address: str, queue: str) -> None:
    """Serve a queue, and say once a handler has begun what it never ends."""
    tools = Tools()
    client = await Client.connect(address)
    # What it has cached is asked of it for so long after its death.
    settings = {"sticky_queue_schedule_to_start_timeout": timedelta(seconds=0.5)}
    async with operation_worker(client, queue, tools.handlers, **settings):
        await tools.begun.wait()
        print("begun", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work_until_killed(*sys.argv[1:]))
