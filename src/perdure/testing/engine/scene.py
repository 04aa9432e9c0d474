from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeAlias

from perdure.app import App
from perdure.approvals import Approval
from perdure.engine.options import WorkerOptions
from perdure.engine.run_handle import RunHandle
from perdure.engine.store import RunRow, RunState
from perdure.testing.storage.expecting import soon, within

MakeApp: TypeAlias = Callable[..., App]
"""Makes one more App on the place of a check, with the options of `App` that are given."""

Register: TypeAlias = Callable[[App], object]
"""Registers the run functions, the queues and the schedules of a check with an App."""

WAITING: Final = (RunState.SLEEPING, RunState.SUSPENDED)
_BRISK: Final = WorkerOptions(
    lease_seconds=3600.0,
    sweep_seconds=0.02,
    poll_seconds=0.01,
    reconcile_seconds=0.02,
    drain_seconds=0.0,
    linger_seconds=0.05,
)


class Scene:
    """The Apps of one check; the end closes them."""

    def __init__(self, make: MakeApp) -> None:
        self._make = make
        self._mark = secrets.token_hex(4)
        self._opened: list[tuple[App, AsyncExitStack]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for app, _ in reversed([*self._opened]):
            await self.close(app)

    def name(self, of: str = "run") -> str:
        """Return an id that no other check has, the same for the same text."""
        return f"{of}-{self._mark}"

    async def worker(self, register: Register) -> App:
        """Open one more App, which executes runs."""
        app = self._make(worker=_BRISK)
        register(app)
        stack = AsyncExitStack()
        await stack.enter_async_context(app)
        self._opened.append((app, stack))
        return app

    async def outsider(self, register: Register) -> App:
        """Open one more App, which executes nothing."""
        app = self._make(worker=_BRISK)
        register(app)
        stack = AsyncExitStack()
        await stack.enter_async_context(app.connect())
        self._opened.append((app, stack))
        return app

    async def close(self, app: App) -> None:
        """Close an App before the end; what it executes goes on elsewhere."""
        for opened in [*self._opened]:
            if opened[0] is app:
                self._opened.remove(opened)
                await opened[1].aclose()


class Gate:
    """A place in the code of runs: it notes who gets there, and holds all until it is opened."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let through who is there and who comes."""
        self._opened.set()

    async def __call__(self, who: Any = None) -> None:
        """Get there, and past it once it is open."""
        self.came.append(who)
        await self._opened.wait()

    async def reached(self, times: int = 1) -> None:
        """Return as soon as the place was reached so often."""
        await until(lambda: len(self.came) >= times, f"{times} runs get to a place in their code")


async def until(told: Callable[[], bool], what: str) -> None:
    """Return as soon as something holds in this process."""

    async def asked() -> bool:
        return told()

    await soon(asked, what)


async def end_of(handle: RunHandle[Any]) -> Any:
    """Return what a run returned, or raise what became of it instead."""
    return await within(handle.result(), f"the end of {handle.run_id}")


async def stands(app: App, run_id: str, *states: RunState) -> RunRow:
    """Return a run as soon as it is in one of some states."""

    async def looked() -> bool:
        return (await app.find(run_id)).state in states

    await soon(looked, f"{run_id} is {' or '.join(states)}")
    return await app.find(run_id)


async def taken_away(app: App, run_id: str) -> None:
    """Take the lease of the worker that executes a run, as if it had ended; it hears nothing."""
    holder = (await app.find(run_id)).holder
    assert holder is not None, f"{run_id} is executed: nobody does"
    await app.store.retire_worker(holder)


async def asked(app: App, run_id: str) -> Approval:
    """Return what a run asks for, as soon as it does."""

    async def looked() -> bool:
        return bool(await app.approvals(run_id, open_only=False))

    await soon(looked, f"{run_id} asks for an approval")
    (item,) = await app.approvals(run_id, open_only=False)
    return item
