"""A dispatcher in the process of a test: what it is told, and how much of that it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perdure import App
from perdure.engine.dispatch import Driver, Rested, WaitingRun
from perdure.errors import UnknownRun


class Switchboard:
    """What the dispatchers of some Apps have in common, as a server would.

    While it is `deaf`, nothing that it is told reaches it. It thinks that the runs in `unfinished`
    have not ended. `drives` are the runs that were asked
    for, with how they stood then.
    """

    def __init__(self) -> None:
        self.deaf = False
        self.told: list[tuple[str, str]] = []
        self.sessions: dict[str, str | None] = {}
        self.drives: list[tuple[str, Rested | None]] = []
        self.drivers: list[Driver] = []
        self.unfinished: list[str] = []
        self.served: set[tuple[str, int]] = set()
        self._driving: set[asyncio.Task[None]] = set()

    def dispatch(self, app: App) -> None:
        """Have the runs of an App dispatched from here, once it is opened."""
        app._dispatching = lambda connect, lease_seconds: _Dispatcher(self)

    def hear(self, what: str, run: WaitingRun) -> None:
        # As a server does that was asked to cancel before.
        if self.deaf or (what == "cancel" and (what, run.run_id) in self.told):
            return
        self.told.append((what, run.run_id))
        self.sessions[run.run_id] = run.session
        if self.drivers:
            self.drive(run.run_id)

    def drive(self, run_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._drive(self.drivers[-1], run_id))
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)

    async def _drive(self, driver: Driver, run_id: str) -> None:
        with suppress(UnknownRun):
            self.drives.append((run_id, await driver.drive(run_id)))

    async def land(self) -> None:
        await asyncio.gather(*self._driving)


class _Dispatcher:
    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._driver: Driver | None = None

    async def open(self) -> None:
        pass

    async def serve(
        self, driver: Driver, served: Sequence[tuple[str, int]], concurrency: int
    ) -> None:
        self._board.served.update(served)
        if self._driver is None:
            self._driver = driver
            self._board.drivers.append(driver)

    async def wake(self, run: WaitingRun) -> None:
        self._board.hear("wake", run)

    async def ensure(self, run: WaitingRun) -> bool:
        self._board.hear("ensure", run)
        return not self._board.deaf

    async def unfinished(self) -> Sequence[str]:
        return self._board.unfinished

    async def finish(self, run_id: str) -> None:
        self._board.hear("finish", WaitingRun(run_id, "", 0))

    async def cancel(self, run_id: str) -> None:
        self._board.hear("cancel", WaitingRun(run_id, "", 0))

    async def close(self) -> None:
        if self._driver in self._board.drivers:
            self._board.drivers.remove(self._driver)
        await self._board.land()


def ends_of(drives: Sequence[tuple[str, Rested | None]], run_id: str) -> list[Any]:
    """Return how a run stood each time that it was driven; None where it could not be."""
    return [rested and rested.state for name, rested in drives if name == run_id]
