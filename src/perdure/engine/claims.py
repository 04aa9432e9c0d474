from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from perdure.engine.children import with_children
from perdure.engine.registry import Registry
from perdure.engine.store import ClaimedRun, RunStore
from perdure.errors import KeyUnavailable, StorageError
from perdure.observe import log


class Claims:
    """Takes runs for a worker, as many as it has places for.

    `executed` tells how many it executes. With `only_started`, it takes those that were wanted and
    what they start. As long as the store holds what was written with a key that this process lacks,
    it takes none: it would take them from workers that have the key.
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
        self._missing: Sequence[str] = ()
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

    @property
    def locked(self) -> bool:
        """Whether the store holds what was written with a key that this process lacks."""
        return bool(self._missing)

    async def lacks_key(self, holder: str, error: BaseException) -> bool:
        """Return whether an error is for want of a key that others have; then take no more runs."""
        if isinstance(error, KeyUnavailable):
            with suppress(StorageError):  # the run is claimed once more, and this looked for again
                await self._look_for_keys(holder)
                return self.locked
        return False

    async def look_again(self, holder: str) -> None:
        """Take runs again if no key is missing any more. Raises a `StorageError`."""
        if self.locked:
            await self._look_for_keys(holder)

    async def _look_for_keys(self, holder: str) -> None:
        before, self._missing = self._missing, await self._store.missing_keys()
        if self._missing and not before:
            log.error(
                "worker %s takes no more of the runs that wait: the store holds what is encrypted"
                " with %s by now, which the keyring does not have. Add the key to that of every"
                " process and restart this one; workers that have it go on with those runs",
                holder,
                ", ".join(map(repr, self._missing)),
            )
        elif before and not self._missing:
            log.info("worker %s takes runs again: no key is missing any more", holder)
            self.backlog = True

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
        if self.locked:
            self.backlog = False
            return
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
        if self.locked:
            return None
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
