from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from statistics import median

from benchmarks.floor import Floor
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Database
from benchmarks.work import echo
from perdure import (
    App,
    Context,
    EffectPolicy,
    OperationIdentity,
    ReceiptStore,
    SideEffectSupport,
    guard,
)

_EACH = 200
_AT_ONCE = 64
_CALLERS = 16
_RECEIPTS = 10
"""One receipt for so many records: 100,000 beside a million."""

_POLICY = EffectPolicy(support=SideEffectSupport.IDEMPOTENT)


class Grown:
    """A database that is filled further and further, and the work whose cost is measured in it."""

    def __init__(self, app: App, elsewhere: App, store: ReceiptStore, floor: Floor, each: int):
        self._app, self._elsewhere, self._store, self._floor = app, elsewhere, store, floor
        self._each = each
        self._payload = text(PAYLOAD_BYTES)
        packed = self._payload.encode()
        self._entry = ("run-1/call/1", packed, packed)
        self._records = self._receipts = self._waiting = 0
        self._numbers = itertools.count()

    @classmethod
    @asynccontextmanager
    async def open(cls, database: Database, operations: int = _EACH) -> AsyncGenerator[Grown]:
        """Open a database; `operations` is how many the measured run performs."""
        app, elsewhere = App(database.url), App(database.url)

        @app.run(version=1)
        async def sequence(context: Context, count: int) -> None:
            payload = text(PAYLOAD_BYTES)
            for _ in range(count):
                await context.call(echo, payload)

        @elsewhere.run(version=1)
        async def waiting(context: Context) -> None:
            """Be executed by other workers, of which there are none."""

        payload = text(PAYLOAD_BYTES).encode()
        async with app, elsewhere.connect(), ReceiptStore.open(database.url) as store:
            with database.floor(("run-1/call/1", payload, payload)) as floor:
                yield cls(app, elsewhere, store, floor, operations)

    async def warm(self, records: int) -> None:
        await self._perform(records)

    async def fill(self, records: int) -> None:
        """Record until there are so many records, and receipts for a share of them."""
        missing = records - self._records
        each = max(1, min(50, missing // _AT_ONCE))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with turns:
                await self._perform(each)

        for _ in range(0, max(0, missing // each), 1000):
            left = (records - self._records) // each
            await asyncio.gather(*(one() for _ in range(min(1000, left))))
        await self._apply((records // _RECEIPTS - self._receipts) // _CALLERS)

    async def wait(self, runs: int) -> None:
        """Start runs that nobody executes, until there are so many."""
        while self._waiting < runs:
            some = min(1000, runs - self._waiting)
            await asyncio.gather(*(self._elsewhere.start("waiting") for _ in range(some)))
            self._waiting += some

    async def each(self) -> float:
        """Return the seconds that an operation takes in one run."""
        began = time.perf_counter()
        await self._perform(self._each)
        return (time.perf_counter() - began) / self._each

    def each_floor(self) -> float:
        return self._floor.seconds(_EACH, [self._entry]) / _EACH

    async def single(self) -> float:
        """Return the median of runs of one operation."""
        times: list[float] = []
        for _ in range(50):
            began = time.perf_counter()
            await self._perform(1)
            times.append(time.perf_counter() - began)
        return median(times)

    def single_floor(self) -> float:
        return median(self._floor.seconds(3, [self._entry]) for _ in range(50))

    async def effects(self) -> float:
        """Return the seconds that a guarded effect takes, amortised over its callers."""
        began = time.perf_counter()
        await self._apply(25)
        return (time.perf_counter() - began) / (25 * _CALLERS)

    def effects_floor(self) -> float:
        return self.each_floor()

    async def _perform(self, operations: int) -> None:
        handle = await self._app.start("sequence", operations)
        await handle.result()
        self._records += operations

    async def _apply(self, each: int) -> None:
        await asyncio.gather(*(self._pay(each) for _ in range(_CALLERS)))

    async def _pay(self, each: int) -> None:
        for _ in range(each):
            identity = OperationIdentity(f"invoice-{next(self._numbers)}", "charge", "bank")
            self._receipts += 1
            await guard(self._store, identity, self._send, policy=_POLICY)

    async def _send(self, identity: OperationIdentity) -> str:
        return self._payload
