from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.engine.store import RunEnd, RunState
from perdure.errors import StorageError
from perdure.fence import Fence
from perdure.testing.storage.expecting import ensure, expect
from perdure.testing.storage.scene import Process, Scene, settlement
from perdure.testing.storage.upkeep import collected, everything

_MANY: Final = 1100
_RUNS: Final = 10
_MOST_ROWS: Final = 1000
"""The most that one transaction deletes, so that others need not wait for it."""


async def it_is_deleted_in_steps_that_others_write_between(scene: Scene) -> None:
    """A run of which a part is gone is an erased one, whoever looks, and anybody goes on."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    records = (process.append(fence, "tool", number) for number in range(_MANY))
    await asyncio.gather(*records)
    claims = (
        process.attempted_in(fence, ReceiptState.COMPLETED, number) for number in range(1, 301)
    )
    await asyncio.gather(*claims)
    await process.end(fence, RunState.FAILED)
    for number in range(_RUNS):
        small = await process.start(f"small-{number}")
        await asyncio.gather(*(process.append(small, "tool", n) for n in range(_MANY // _RUNS)))
        await process.end(small)
    live = await other.start("live")
    expiry = everything(process.store)
    steps: list[Mapping[str, int]] = []
    while any((some := await process.store.collect_some(expiry)).values()):
        steps.append(some)
        ensure(sum(some.values()) <= _MOST_ROWS, f"one transaction deletes {dict(some)}")
        await other.append(live, "tool", len(steps))
        if len(steps) == 1:
            expect(some["runs"], 0, "runs that are gone after the first step")
            row = await other.store.resume_run("run-1")
            ensure(row is not None and row.tombstone, "a run that goes is an erased one")
            expect(row and row.state, RunState.FAILED, "a run that goes, resumed")
            expect(await other.claim(), [], "claims of a run that goes")
        process, other = other, process
    gone = {name: sum(some[name] for some in steps) for name in ("runs", "receipts")}
    expect(gone, {"runs": 1 + _RUNS, "receipts": 300}, "what is gone in the end")
    expect(await process.store.read_run("run-1"), None, "the run")
    rows = (await process.store.read_journal("live")).rows
    expect(len(rows), len(steps), "what was recorded in between")


async def several_may_collect_at_once(scene: Scene) -> None:
    """What is gone is counted by one of them."""
    processes = [await scene.process() for _ in range(3)]
    fences = [await processes[0].start(f"run-{number}") for number in range(40)]
    for number, fence in enumerate(fences):
        await processes[0].append(fence, "model", 1, document=b"begins alike" + b"%d" % number)
        await processes[0].attempted_in(fence, ReceiptState.COMPLETED)
        await processes[0].end(fence)
    expiry = everything(processes[0].store)
    gone = await asyncio.gather(*(collected(process.store, expiry) for process in processes))
    sums = {name: sum(each[name] for each in gone) for name in ("runs", "receipts")}
    expect(sums, {"runs": 40, "receipts": 40}, "what all of them have deleted")


async def what_is_sent_again_meanwhile_keeps_its_receipt(scene: Scene) -> None:
    """Whoever may send has a receipt: the one that was refused before, or a new one."""
    one, other, collector = [await scene.process() for _ in range(3)]
    expiry = everything(collector.store, "receipts")

    async def refused(process: Process, number: int) -> None:
        identity = OperationIdentity("order", "charge", "bank", number)
        for _ in range(6):
            receipt, mine = await _insisted(process, identity)
            ensure(mine, "whoever begins again what was refused may send")
            await collected(collector.store, expiry)
            kept = await process.store.read_receipt(receipt.operation_key)
            expect(kept, receipt, "the receipt of what may be under way")
            _, landed = await process.store.settle_effect(settlement(receipt, Move.REFUSE))
            ensure(landed, "what was under way is refused")

    await asyncio.gather(*(refused((one, other)[number % 2], number) for number in range(12)))


async def what_begins_alike_may_be_written_meanwhile(scene: Scene) -> None:
    """A run that comes while another goes is whole, whatever the two share."""
    one, other, collector = [await scene.process() for _ in range(3)]
    expiry = everything(collector.store, "runs")
    parts = [b"%d, " % number * 300 for number in range(8)]
    ends = (*itertools.accumulate(map(len, parts)),)
    document, given = b"".join(parts), b'["' + b'","'.join(parts) + b'"]'

    async def working(process: Process, number: int) -> None:
        before: Fence | None = None
        for turn in range(5):
            run_id = f"run-{number}-{turn}"
            fence = await process.start(run_id, given)
            await process.append(fence, "model", turn, document=document, cuts=ends)
            if before is not None:
                await process.store.end_run(before, RunEnd(RunState.COMPLETED, given))
            await collected(collector.store, expiry)
            found = await process.store.read_input(run_id, "model", turn)
            expect(found, document, "an input that was written while others were deleted")
            expect(await process.store.read_run_input(run_id), given, "what a run was given")
            before = fence

    await asyncio.gather(*(working((one, other)[number % 2], number) for number in range(4)))


async def _insisted(process: Process, identity: OperationIdentity) -> tuple[Receipt, bool]:
    """Begin an effect, again when its receipt went at that moment."""
    claim = process.effect(identity=identity)
    try:
        return await process.store.claim_effect(claim)
    except StorageError:
        return await process.store.claim_effect(claim)
