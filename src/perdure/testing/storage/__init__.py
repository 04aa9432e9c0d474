"""What every storage driver promises, as checks that run on any of them.

A check gets a function that opens a store, and calls it as often as it wants stores on one and the
same place: each of them stands for a process. The place has to be empty and the check's own. A
check raises `AssertionError` where the driver does something else than its ports say.

    for check in checks():
        place = an_empty_place()
        asyncio.run(check(lambda **given: MyStorage.open(place, **given)))

A store has the methods of `perdure.engine.archive.ArchiveStore`, which are all that an App asks of
it. `given` is empty but for two planes: checks of `blobs` open stores with `blobs=`, a `BlobStore`
in which large values are to be kept, and those of `encryption` with `vault=`, a `Vault` that every
value of users is to pass; both also open stores without. A driver that has no such thing leaves it
out: `checks(without=["blobs", "encryption"])`. The checks of `encryption` need the extra of that
name. Those of `parking` and `inbox` put runs away and send messages to them at once: a store has to
order the two for each run, so that none is lost in between. Nothing checks hints: a store without
them returns True from `changed()`, and is merely asked more often.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from types import ModuleType
from typing import Final

import msgspec

from perdure.errors import InvalidOptions
from perdure.testing.storage import (
    approvals,
    archives,
    blobs,
    checkpoints,
    collecting,
    encryption,
    erasure,
    inbox,
    journal,
    leases,
    lookups,
    parking,
    pieces,
    queue,
    queues,
    receipts,
    retention,
    schedules,
    sessions,
    timers,
    turns,
)
from perdure.testing.storage.scene import OpenStore, Scene

_PLANES: Final[dict[str, ModuleType]] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        queue,
        queues,
        leases,
        journal,
        pieces,
        timers,
        parking,
        inbox,
        approvals,
        receipts,
        lookups,
        erasure,
        retention,
        collecting,
        archives,
        blobs,
        checkpoints,
        schedules,
        sessions,
        turns,
        encryption,
    )
}

OPTIONAL: Final = frozenset({"blobs", "encryption"})
"""The planes that a driver may do without."""


class Check(msgspec.Struct, frozen=True):
    """One promise: `name` says which, as `plane.what_holds`."""

    name: str
    holds: Callable[[Scene], Awaitable[None]]

    async def __call__(self, open_store: OpenStore) -> None:
        """Check it on an empty place; raises `AssertionError` if the driver does not keep it."""
        async with Scene(open_store) as scene:
            await self.holds(scene)


def checks(*, without: Collection[str] = ()) -> list[Check]:
    """Return every check, plane by plane, but for those `without` some of `OPTIONAL`.

    Raises `InvalidOptions` for a plane that is not optional.
    """
    if isinstance(without, str):
        raise InvalidOptions(f"without= is several names, as in without=[{without!r}]")
    if wrong := sorted({*without} - OPTIONAL):
        optional = ", ".join(sorted(OPTIONAL))
        raise InvalidOptions(f"{wrong[0]!r} cannot be left out: it is none of {optional}")
    return [
        Check(f"{plane}.{name}", holds)
        for plane, module in _PLANES.items()
        if plane not in without
        for name, holds in vars(module).items()
        if inspect.iscoroutinefunction(holds) and holds.__module__ == module.__name__
        if not name.startswith("_")
    ]
