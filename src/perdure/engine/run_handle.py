from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from perdure.engine.store import RunRow, RunState

T = TypeVar("T")


class Runs(Protocol):
    """What knows of the runs of a store."""

    async def result(self, run_id: str) -> Any:
        """Wait for a run to end and return what its function returned."""
        ...

    async def find(self, run_id: str) -> RunRow:
        """Return a run as it stands; raises `UnknownRun`."""
        ...

    async def cancel(self, run_id: str) -> RunRow:
        """Cancel a run, or ask its worker to; raises `UnknownRun`."""
        ...


class RunHandle(Generic[T]):
    """A run that was started, here or anywhere."""

    def __init__(self, runs: Runs, run_id: str) -> None:
        self.run_id = run_id
        self._runs = runs

    async def result(self) -> T:
        """Wait for the run to end and return what its function returned.

        Raises `RunFailed`, `RunCancelled`, or `RunNeedsAttention` when a person has to act first,
        `RunErased` when nobody can say any more, and `InvalidPayload` for a result of a class that
        this App does not know.
        """
        return await self._runs.result(self.run_id)

    async def status(self) -> RunState:
        """Return where the run stands."""
        return (await self._runs.find(self.run_id)).state

    async def cancel(self) -> RunState:
        """Ask for the run's end and return where it stands; its code sees a cancellation.

        Durable when it returns: the cancellation or the request for it, fsynced.
        """
        return (await self._runs.cancel(self.run_id)).state
