from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from perdure.clock import Clock
from perdure.errors import LeaseLost, StorageError
from perdure.observe import log


class Chore:
    """Something that a worker looks after beside its runs, again and again, one look at a time.

    Targets and channels may take their time to answer: a look keeps nothing waiting, and what goes
    wrong in one is left to the next.
    """

    def __init__(
        self, what: str, look: Callable[[], Awaitable[object]], seconds: float, clock: Clock
    ) -> None:
        self._what = what
        self._look = look
        self._seconds = seconds
        self._clock = clock
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Begin to look if the last look is over, and began long enough ago."""
        now = self._clock.monotonic()
        if self._looking is None and now - self._looked_at >= self._seconds:
            self._looked_at = now
            self._looking = asyncio.create_task(self._once(), context=copy_context())

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _once(self) -> None:
        try:
            await self._look()
        except LeaseLost:
            pass
        except StorageError as error:
            log.warning("%s later: %s", self._what, error)
        except Exception:  # noqa: BLE001 - the next look may do better
            log.exception("%s later, after an unexpected error", self._what)
        finally:
            self._looking = None
