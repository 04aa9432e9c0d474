"""What every engine promises to run functions and to people, as checks that run on any of them.

A check gets a function that makes Apps, and calls it as often as it wants Apps on one and the same
place: each of them stands for a process. The place has to be empty and the check's own. A check
raises `AssertionError` where runs do something else than was promised.

    for check in checks():
        place = an_empty_place()
        asyncio.run(check(lambda **options: App(place, **options)))

`options` are those of an `App` that are not its place. An App is opened with `async with` to
execute runs, or with `connect()`; several are open at once in one event loop. Nothing but the
methods of `App`, of the contexts of runs and of the store's port is used, and nobody turns a clock,
so the same checks hold an engine that executes runs on some other system's word. Its place is then
one of both: ids of runs, sessions and schedules are new in each check, since that system may know
those of all of them. What has not come after 20 seconds does not come: the check fails with what it
waited for.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Final

import msgspec

from perdure.testing.engine import (
    approvals,
    cancelling,
    children,
    effects,
    forks,
    ownership,
    queues,
    replay,
    runs,
    schedules,
    sessions,
    versions,
    waiting,
)
from perdure.testing.engine.scene import MakeApp, Scene
from perdure.testing.storage.expecting import within

_MOST_SECONDS: Final = 120.0

_PLANES: Final[dict[str, ModuleType]] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        runs,
        replay,
        effects,
        ownership,
        waiting,
        approvals,
        children,
        cancelling,
        queues,
        schedules,
        sessions,
        forks,
        versions,
    )
}


class EngineCheck(msgspec.Struct, frozen=True):
    """One promise: `name` says which, as `plane.what_holds`."""

    name: str
    holds: Callable[[Scene], Awaitable[None]]

    async def __call__(self, make: MakeApp) -> None:
        """Check it on an empty place; raises `AssertionError` if the engine does not keep it."""
        await within(self._held(make), f"the end of {self.name}", _MOST_SECONDS)

    async def _held(self, make: MakeApp) -> None:
        async with Scene(make) as scene:
            await self.holds(scene)


def checks() -> list[EngineCheck]:
    """Return every check, plane by plane."""
    return [
        EngineCheck(f"{plane}.{name}", holds)
        for plane, module in _PLANES.items()
        for name, holds in vars(module).items()
        if inspect.iscoroutinefunction(holds) and holds.__module__ == module.__name__
        if not name.startswith("_")
    ]
