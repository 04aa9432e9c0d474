from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from perdure.engine.store import RunStore
from perdure.errors import StorageError
from perdure.fence import Fence
from perdure.observe import log

_RETRY_SECONDS: Final = 0.25
_MOST_PAUSES: Final = 128


class Returns:
    """Gives runs back that are not over, for any worker to go on with."""

    def __init__(self, store: RunStore, closing: Callable[[], bool]) -> None:
        self._store = store
        self._closing = closing
        self._setbacks: Counter[str] = Counter()

    def forget(self, run_id: str) -> None:
        """Forget how often a run was given back; it has come to something."""
        self._setbacks.pop(run_id, None)

    async def give_back(self, fence: Fence, *, at_once: bool, locked: bool = False) -> None:
        """Give a run back after a pause, which is longer each time unless it is to go `at_once`.

        As one that is `locked`, it goes at once: this worker takes no more of these. A release that
        the store refuses is logged: the end of the lease does it.
        """
        setbacks = self._setbacks[fence.run_id]
        pauses = self._setbacks[fence.run_id] = min(2 * setbacks or 1, _MOST_PAUSES)
        # First, because another worker, or this one, takes it at once; and for longer each time,
        # because what is refused now may be refused for ever.
        while pauses and not self._closing() and not (at_once or locked):
            await asyncio.sleep(_RETRY_SECONDS)
            pauses -= 1
        await self.give_back_all([fence], locked=locked)

    async def give_back_all(self, fences: Iterable[Fence], *, locked: bool = False) -> None:
        """Give runs back at once; what the store refuses is logged."""
        for fence in fences:
            try:
                await self._store.release_run(fence, locked=locked)
            except StorageError as error:
                log.error("run %s could not be given back: %s", fence.run_id, error)
