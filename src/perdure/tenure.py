from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.clock import Clock
from perdure.errors import (
    LeaseLost,
    PerdureError,
    RunParked,
    StorageBusy,
    StorageError,
    StorageFull,
)
from perdure.observe import log
from perdure.ports import Ownership

T = TypeVar("T")


class Tenure:
    """This process's hold on a run: whether it may still do anything for it, and if not, why.

    Each reason is sticky, because code that swallows a signal must still get nothing done.
    `parked` is the error that a person has to look at, and `refused` what the store said.
    """

    def __init__(self, run_id: str, ownership: Ownership, clock: Clock) -> None:
        self.parked: PerdureError | None = None
        self.refused: StorageError | None = None
        self.lost = False
        self._run_id = run_id
        self._ownership = ownership
        self._clock = clock
        self._refusals = 0

    def park(self, cause: PerdureError) -> RunParked:
        """Stop the run for a person to look at: every further operation is refused."""
        if self.parked is None:
            self.parked = cause
        return RunParked(self.parked)

    def refusal(self) -> BaseException | None:
        """Return why nothing more may be done, or None."""
        if self.parked is not None:
            return RunParked(self.parked)
        if self.refused is not None:
            return self.refused
        return LeaseLost(self._run_id) if self.lost else None

    async def refuse(self, refusal: BaseException | None) -> None:
        """Raise a refusal, if there is one, a little later each time.

        Code that swallows it and asks again must not keep the loop from the others.
        """
        if refusal is None:
            return
        self._refusals = min(self._refusals + 1, 10)
        await asyncio.sleep(0.001 * 2**self._refusals)
        raise refusal

    def confirm(self) -> None:
        """Raise `LeaseLost` unless the run is confirmed to be this process's."""
        try:
            self._ownership.check(self._run_id)
        except LeaseLost:
            # Sticky: a lease confirmed too late must not let code go on that swallowed the signal.
            self.lost = True
            raise

    async def insist(
        self, work: Callable[[], Awaitable[T]], closing: Callable[[], bool] | None = None
    ) -> T:
        """Do with the store what cannot be left out, for as long as this process owns the run.

        A store that is busy or full is waited for, unless `closing` tells that nobody can wait.

        Durable when it returns: what `work` writes, fsynced.
        If it raises: `LeaseLost`, or a `StorageError` that waiting does not mend.
        """
        pause = 0.05
        while True:
            try:
                return await work()
            except LeaseLost:
                self.lost = True
                raise
            except (StorageBusy, StorageFull) as error:
                if closing is not None and closing():
                    raise
                log.warning("run %s waits for its store: %s", self._run_id, error)
            except StorageError as error:
                self.refused = error
                raise
            await self._clock.sleep(pause)
            pause = min(pause * 2, 1.0)
            self.confirm()
