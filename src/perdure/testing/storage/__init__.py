"""What every storage driver promises, as checks that run on any of them.

A check gets a function that opens a store, and calls it as often as it wants stores on one and the
same place: each of them stands for a process. The place has to be empty and the check's own. A
check raises `AssertionError` where the driver does something else than its ports say.

    for check in checks():
        place = an_empty_place()
        asyncio.run(check(lambda: MyStorage.open(place)))
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Final

import msgspec

from perdure.testing.storage import (
    erasure,
    journal,
    leases,
    lookups,
    pieces,
    queue,
    receipts,
    timers,
)
from perdure.testing.storage.scene import OpenStore, Scene

_PLANES: Final[tuple[ModuleType, ...]] = (
    queue,
    leases,
    journal,
    pieces,
    timers,
    receipts,
    lookups,
    erasure,
)


class Check(msgspec.Struct, frozen=True):
    """One promise: `name` says which, as `plane.what_holds`."""

    name: str
    holds: Callable[[Scene], Awaitable[None]]

    async def __call__(self, open_store: OpenStore) -> None:
        """Check it on an empty place; raises `AssertionError` if the driver does not keep it."""
        async with Scene(open_store) as scene:
            await self.holds(scene)


def checks() -> list[Check]:
    """Return every check, plane by plane."""
    return [
        Check(f"{plane.__name__.rpartition('.')[2]}.{name}", holds)
        for plane in _PLANES
        for name, holds in vars(plane).items()
        if inspect.iscoroutinefunction(holds) and holds.__module__ == plane.__name__
        if not name.startswith("_")
    ]
