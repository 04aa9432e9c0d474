from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.engine.queues import QueueLimits, QueueRow
from perdure.engine.registry import Registry
from perdure.errors import UnknownQueue

if TYPE_CHECKING:
    from perdure.engine.engine import Engine


class Queues(ABC):
    """What bounds how many runs are executed at once, and how many begin."""

    _registry: Registry

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the open App; raises `EngineClosed` when it is not open."""

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: tuple[int, float] | None = None,
    ) -> None:
        """Declare a queue, which `start(..., queue=name)` puts runs into; before the App opens.

        `concurrency` is how many of its runs are executed at once, by all workers of the store
        together, and `key_concurrency` how many with the same `key`; a run that sleeps or is
        suspended takes no place. `rate` is a number of runs and of seconds: no more begin within
        that time, wherever it starts, and going on is no beginning. What is not given is not
        bounded. A worker writes the limits when it opens, and those of the last one hold for all.

        Raises `InvalidOptions`.
        """
        rate_runs, rate_seconds = (None, None) if rate is None else rate
        self._registry.queues.add(
            name,
            QueueLimits(
                concurrency=concurrency,
                key_concurrency=key_concurrency,
                rate_runs=rate_runs,
                rate_seconds=rate_seconds,
            ),
        )

    async def queues(self) -> Sequence[QueueRow]:
        """Return the queues that the store knows, by name, also those that nobody declares."""
        return await self.engine.store.list_queues()

    async def pause_queue(self, name: str) -> None:
        """Let no run of a queue begin or go on until it is resumed, also when workers start anew.

        What is executed now is not stopped, and a run that a worker claims just now may begin.

        Durable when it returns: the pause, fsynced. Raises `UnknownQueue`.
        """
        if not await self.engine.store.pause_queue(name):
            raise UnknownQueue(name)

    async def resume_queue(self, name: str) -> None:
        """Let the runs of a paused queue begin and go on.

        Durable when it returns: the resumption, fsynced. Raises `UnknownQueue`.
        """
        if not await self.engine.store.resume_queue(name):
            raise UnknownQueue(name)
