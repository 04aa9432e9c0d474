from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from itertools import count

from temporalio.client import Client
from temporalio.service import RPCError

from benchmarks.payload import PAYLOAD_BYTES, text

PAYLOAD = text(PAYLOAD_BYTES)


class Use(ABC):
    """One way to have operations performed, each with the same bytes in and out.

    `client` is that of the server that all of them use, also where a way does not.
    """

    label: str

    def __init__(self, client: Client, address: str) -> None:
        self.client = client
        self.address = address
        self.stack = AsyncExitStack()
        self.numbers = count()

    async def open(self) -> None:  # noqa: B027 - some are served by the worker of another
        """Begin to serve; whatever is to be closed goes on the stack."""

    @abstractmethod
    async def sequence(self, name: str, operations: int) -> list[float]:
        """Perform operations one after another, and return the seconds of each."""

    @abstractmethod
    def workflows(self, name: str, operations: int) -> list[str]:
        """Return the ids of the workflows that a sequence is on Temporal."""

    def fresh(self) -> str:
        """Return a name that no sequence has had."""
        return f"{type(self).__name__}-{next(self.numbers)}"

    async def closed(self, name: str, operations: int) -> int:
        """Wait until nothing of a sequence is open on Temporal; return its events of history."""
        events = 0
        for workflow_id in self.workflows(name, operations):
            handle = self.client.get_workflow_handle(workflow_id)
            await handle.result()
            events += (await handle.describe()).history_length
        return events

    async def events(self, operations: int) -> float:
        """Return how many events of histories there are for an operation of a sequence."""
        name = self.fresh()
        await self.sequence(name, operations)
        return await self.closed(name, operations) / operations

    async def rate(self, at_once: int, operations: int) -> float:
        """Return how many operations a second there are, of so many sequences at once."""
        names = [self.fresh() for _ in range(at_once)]
        began = time.perf_counter()
        await asyncio.gather(*(self.sequence(name, operations) for name in names))
        rate = at_once * operations / (time.perf_counter() - began)
        # A run's result is known before the server is done with it, at the cost of who comes next.
        await asyncio.gather(*(self.closed(name, operations) for name in names))
        return rate


async def connect(address: str) -> Client:
    """Connect to a server that has just been started."""
    while True:
        try:
            client = await Client.connect(address)
            await client.count_workflows()
        except (RPCError, RuntimeError):
            continue
        return client
