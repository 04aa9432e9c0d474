from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.engine.run_state import RunState


class WaitingRun(msgspec.Struct, frozen=True):
    """A run that waits for a worker, and the session that it answers in, or None.

    `number` grows in the order in which runs were written, and `generation` counts the claims of
    this one; both are 0 where nobody asked for them.
    """

    run_id: str
    function: str
    version: int
    session: str | None = None
    number: int = 0
    generation: int = 0


class Rested(msgspec.Struct, frozen=True):
    """How a run stands that nobody executes.

    `seconds` is how long it is until it goes on by itself, None where it does not.
    """

    state: RunState
    seconds: float | None = None


class Driver(Protocol):
    """What executes the runs of a store in this process."""

    async def drive(self, run_id: str) -> Rested | None:
        """Execute a run until it rests, and return how it stands then.

        None where that cannot be here and now: somebody else executes it, its queue does not let
        it through, or this worker closes. Whoever stops waiting leaves the execution as it is.

        Durable when it returns: how the run stands. Raises `UnknownRun` or a `StorageError`.
        """
        ...

    async def cancel(self, run_id: str) -> None:
        """Ask for the end of a run and of those below it. Durable when it returns, fsynced."""
        ...


class Dispatcher(Protocol):
    """What decides which worker executes which run, where workers do not look for runs themselves.

    The store is the truth: what a dispatcher was not told, it is told again. So nothing here raises
    because it cannot be reached; it logs that.
    """

    async def open(self) -> None:
        """Make sure that there is something to dispatch; raises `RuntimeUnreachable`."""
        ...

    async def serve(
        self, driver: Driver, served: Sequence[tuple[str, int]], concurrency: int
    ) -> None:
        """Have runs of some functions and versions executed by a driver, up to so many at once.

        Called again and again: what is served already stays so.
        """
        ...

    async def wake(self, run: WaitingRun) -> None:
        """Have a run executed that waits for a worker; one that is executed is looked at again."""
        ...

    async def ensure(self, run: WaitingRun) -> bool:
        """The same for a run that has been waiting for a while, unless its turn is to come.

        Returns whether that is known to be so now.
        """
        ...

    async def unfinished(self) -> Sequence[str]:
        """Return some of the runs that are thought not to have ended, others with each call."""
        ...

    async def finish(self, run_id: str) -> None:
        """Have a run looked at that has ended, or is not there any more."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Take notice that the end of a run was asked for."""
        ...

    async def close(self) -> None:
        """Ask for no more runs, and wait until the driver has answered for those under way."""
        ...
