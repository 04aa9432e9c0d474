from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.errors import BlobsUnavailable, InvalidOptions

_DAY_SECONDS = 86_400


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long a store keeps what is over, in days; None for ever, 0 not at all.

    `runs_days` counts from the end of a run, and takes with it all that it was given, recorded and
    came to. Its receipts stay for `receipts_days` after they were settled: for as long as an effect
    has one, it is not sent again. `tombstones_days` counts from an erasure; what has a tombstone is
    refused, and without one it is as if it had never been. `audit_days` is about the audit table.
    `sessions_days` counts from the last message of a session, and takes all of them, unless a turn
    of it goes on; what is said there later is a new beginning.
    Whatever is not over, or what nobody knows the end of, stays.
    """

    runs_days: float | None = 30.0
    receipts_days: float | None = 90.0
    tombstones_days: float | None = None
    audit_days: float | None = 365.0
    workers_days: float | None = 7.0
    sessions_days: float | None = 90.0

    def __post_init__(self) -> None:
        """Check the days; raises `InvalidOptions`."""
        for name in self.__struct_fields__:
            days = getattr(self, name)
            if days is not None and not days >= 0:
                raise InvalidOptions(f"{name} is 0 or more days, or None for ever, not {days!r}")

    def at(self, now: float) -> Expiry:
        """Return the instants before which things have expired."""

        def before(days: float | None) -> float | None:
            return None if days is None else now - days * _DAY_SECONDS

        return Expiry(
            before(self.runs_days),
            before(self.receipts_days),
            before(self.tombstones_days),
            before(self.audit_days),
            before(self.workers_days),
            before(self.sessions_days),
        )


class Expiry(msgspec.Struct, frozen=True):
    """What has expired: whatever was over before an instant, in wall seconds UTC; None nothing."""

    runs: float | None
    receipts: float | None
    tombstones: float | None
    audit: float | None
    workers: float | None
    sessions: float | None = None


class BlobsFound(msgspec.Struct, frozen=True):
    """How many blobs were looked for, and the places of those that are not there."""

    looked_for: int
    missing: Sequence[str]


class Expiring(Protocol):
    """The port through which a store lets go of what has expired."""

    async def count_expired(self, expiry: Expiry) -> Mapping[str, int]:
        """Return how much of each class has expired, by the names of `Expiry`."""
        ...

    async def holds_blobs(self) -> bool:
        """Return whether large values stand in a blob store; reads all rows where none does.

        That includes those that no row needs any more.
        """
        ...

    async def look_for_blobs(self) -> BlobsFound:
        """Look for some of the blobs that rows need, the newest, in the blob store that was given.

        Looks for none where none was given. Each is read whole, so they are few. Raises a
        `StorageError`.
        """
        ...

    async def collect_some(self, expiry: Expiry) -> Mapping[str, int]:
        """Delete some of what has expired, in one transaction of bounded size.

        Returns how much of each class is gone and, as `parts`, how many rows of what is not gone
        as a whole yet. Nothing is left when all are 0. A run is first made an erased one, so that
        nobody goes on with what is left of it.
        Durable when it returns: the deletions, fsynced.
        """
        ...


async def check_blobs(store: Expiring) -> None:
    """Check that the blob store that was given may be that of the database.

    Raises `BlobsUnavailable` where nothing that was looked for is there: what is to be deleted is
    not there either, and nobody would know of it afterwards.
    """
    found = await store.look_for_blobs()
    if found.missing and len(found.missing) == found.looked_for:
        raise BlobsUnavailable(
            "none of the large values that were looked for is in the blob store that was given,"
            f" {found.missing[0]} for instance: it is that of another database, or what it held is"
            " lost; give the right one, or restore it"
        )


async def collect(store: Expiring, expiry: Expiry) -> AsyncGenerator[Mapping[str, int]]:
    """Delete what has expired, transaction by transaction; yield what each has deleted.

    Raises as `check_blobs`, and nothing was deleted.
    """
    await check_blobs(store)
    while any((some := await store.collect_some(expiry)).values()):
        yield some
