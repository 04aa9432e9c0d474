from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from perdure.engine.children import with_children
from perdure.engine.registry import Registry
from perdure.engine.store import ClaimedRun, RunStore


class Claims:
    """Takes runs for a worker, as many as it has places for.

    `executed` tells how many it executes. With `only_started`, it takes those that were wanted and
    what they start.
    """

    def __init__(
        self,
        store: RunStore,
        registry: Registry,
        concurrency: int,
        executed: Callable[[], int],
        *,
        only_started: bool,
    ) -> None:
        self.backlog = True
        """Whether a run may be waiting for a place, or for a first look."""
        self.everything = not only_started
        """Whether it takes any run that it can execute."""
        self._store = store
        self._registry = registry
        self._concurrency = concurrency
        self._executed = executed
        self._wanted: set[str] = set()
        self._under_way = 0
        self._landing: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def free(self) -> int:
        """How many more runs may be executed."""
        return self._concurrency - self._executed() - self._under_way

    def want(self, run_id: str) -> None:
        """Take this run, too, where only some are taken."""
        if not self.everything:
            self._wanted.add(run_id)
            self.backlog = True

    @contextmanager
    def places(self, count: int) -> Generator[None]:
        """Keep places while a claim is on its way, or many at once would be more than there are."""
        self._under_way += count
        landed = self._loop.create_future()
        self._landing.add(landed)
        try:
            yield
        finally:
            self._under_way -= count
            self._landing.discard(landed)
            landed.set_result(None)

    async def land(self) -> None:
        """Wait for the claims that are on their way."""
        if self._landing:
            await asyncio.wait(self._landing)

    async def take(self, holder: str, begin: Callable[[ClaimedRun], None]) -> None:
        """Claim what waits, as far as there are places, and begin it.

        Durable when it returns: the claims, fsynced.
        """
        limit = self.free
        with self.places(limit):
            only = None if self.everything else await self._wanted_with_children()
            claims = await self._claim(holder, limit, only)
            self.backlog = len(claims) == limit
            for claim in claims:
                begin(claim)

    async def take_one(
        self, holder: str, run_id: str, queue: str | None, begin: Callable[[ClaimedRun], None]
    ) -> str | None:
        """Claim a run and begin it, or the first one of the queue that it waits in.

        Returns the id of what has begun, or None. Durable when it returns: the claim, fsynced.
        """
        with self.places(1):
            only = None if self.everything else await self._wanted_with_children()
            if queue is None:
                only = [run_id] if only is None or run_id in only else []
            for claim in await self._claim(holder, 1, only, queue):
                begin(claim)
                return claim.fence.run_id
        return None

    async def _wanted_with_children(self) -> Sequence[str]:
        return await with_children(self._store, self._wanted)

    async def _claim(
        self, holder: str, limit: int, only: Sequence[str] | None, queue: str | None = None
    ) -> Sequence[ClaimedRun]:
        served = self._registry.served()
        return await self._store.claim_runs(holder, served, limit, only, queue=queue)
