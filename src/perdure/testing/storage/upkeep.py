from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, cast

from perdure.effects.receipt import Move, ReceiptState
from perdure.engine.archive import (
    ArchiveStore,
    RunArchive,
    decode_archive,
    encode_archive,
    export_run,
    take_in,
)
from perdure.engine.retention import Expiry, collect
from perdure.engine.store import RunStore
from perdure.testing.storage.expecting import ensure, expect
from perdure.testing.storage.scene import Process, settlement

CLASSES: Final = ("runs", "receipts", "tombstones", "audit", "workers", "sessions")
"""What expires."""

LATER_SECONDS: Final = 3600.0


def everything(store: RunStore, *names: str) -> Expiry:
    """Return what has expired when all that is over has, of some classes or of all."""
    later = store.clock.now() + LATER_SECONDS
    return Expiry(*(later if name in (names or CLASSES) else None for name in CLASSES))


async def collected(store: RunStore, expiry: Expiry) -> Mapping[str, int]:
    """Collect, and return how much of each class is gone."""
    gone: Counter[str] = Counter()
    async for some in collect(store, expiry):
        gone.update(some)
    return {name: gone[name] for name in CLASSES}


async def exported(store: RunStore, run_id: str) -> bytes:
    """Return a run as a file holds it."""
    return encode_archive(await export_run(store, run_id))


async def taken_in(store: RunStore, file: bytes) -> bool:
    """Import a run from a file; return whether it was not there."""
    return await placed(store, decode_archive(file))


async def emptied(process: Process) -> None:
    """Let go of all that a place holds, whatever is in doubt."""
    await settle(process)
    await collected(process.store, everything(process.store))
    left = await process.store.list_receipts(ambiguous_only=False, limit=9)
    counts = await process.store.count_runs()
    expect((sum(counts.values()), len(left)), (0, 0), "what is left in a place")


async def settle(process: Process) -> None:
    """End all doubt about effects, so that their runs may go."""
    for receipt in await process.store.list_receipts(ambiguous_only=False, limit=99):
        if receipt.state in {ReceiptState.IN_FLIGHT, ReceiptState.AMBIGUOUS}:
            in_flight = receipt.state is ReceiptState.IN_FLIGHT
            move = Move.REFUSE if in_flight else Move.RULE_OUT
            _, landed = await process.store.settle_effect(settlement(receipt, move))
            ensure(landed, "the end of doubt")


async def placed(store: RunStore, archive: RunArchive) -> bool:
    """Import a run; return whether it was not there."""
    return await take_in(cast("ArchiveStore", store), archive)
