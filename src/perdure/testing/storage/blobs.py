from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from perdure.effects.receipt import ReceiptState
from perdure.engine.archive import export_run
from perdure.engine.store import RunEnd, RunState, RunStore
from perdure.errors import JournalError, LeaseLost, StorageError, StorageMissing
from perdure.fence import Fence
from perdure.journal.record import Success
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.held import OVER_BYTES, HeldBlobs
from perdure.testing.storage.scene import SERVED, Process, Scene, new_run
from perdure.testing.storage.upkeep import collected, emptied, everything, placed

T = TypeVar("T")

_UNREADABLE: Final = (StorageError, JournalError)
_HARMS: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "cut short": lambda data: data[:-1],
    "changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}


async def large_values_stand_outside_and_come_back(scene: Scene) -> None:
    """What a run is given, records and comes to, byte for byte; what is small stays inside."""
    held = HeldBlobs()
    process, other = await scene.process(blobs=held), await scene.process(blobs=held)
    await _talked(process, "small", 5, length=20)
    await _talked(process, "packs", 5, noise=False)
    expect(len(held.data), 0, "blobs of what is small when it is packed")
    fence = await _grows(held, process.start("run-1", _given(5, 4)), "what a run is given")
    await _grows(held, process.append(fence, "tool", 1, document=_value(5)), "an input")
    answer = process.append(fence, "tool", 2, outcome=Success(_value(6)))
    await _grows(held, answer, "an answer")
    cuts = (len(_value(7)),)
    beginning = process.append(fence, "tool", 3, document=_value(7) + b"1", cuts=cuts)
    await _grows(held, beginning, "a beginning of an input")
    await _grows(held, process.end(fence, output_json=_given(8, 2)), "what a run came to")
    await _talked(process, "run-2", 5)
    for data in held.data.values():
        ensure(len(data) > OVER_BYTES, "what stands outside is large")
    await _holds(other.store, "run-2", 5)
    await _holds(other.store, "small", 5, length=20)
    await _holds(other.store, "packs", 5, noise=False)
    started = await process.store.start_run(new_run("waits", _value(7)), None)
    ensure(started.created, "a run with a large input waits")
    (claim,) = await other.store.claim_runs(other.holder, SERVED, 9)
    expect((claim.input_json, claim.unreadable), (_value(7), None), "the input of a claim")


async def what_is_missing_or_was_changed_is_refused(scene: Scene) -> None:
    """And never returned as something else; who needs another blob is not concerned."""
    for number, (what, harm) in enumerate(_HARMS.items()):
        held = HeldBlobs()
        process = await scene.process(blobs=held)
        whole, torn = f"whole-{number}", f"torn-{number}"
        await _talked(process, torn, 10 * number)
        await process.store.start_run(new_run(f"waits-{number}", _value(10 * number + 9)), None)
        held.harm(harm)
        await _talked(process, whole, 10 * number + 5)
        await process.store.start_run(new_run(f"waits-{number}-too", _value(1)), None)
        await _refuses(process.store, torn, _UNREADABLE, f"a blob that is {what}")
        await _holds(process.store, whole, 10 * number + 5)
        torn_one, whole_one = await process.store.claim_runs(process.holder, SERVED, 9)
        ensure(torn_one.unreadable is not None, f"a claim tells of a blob that is {what}")
        found = (whole_one.input_json, whole_one.unreadable)
        expect(found, (_value(1), None), "a claim beside that")


async def whoever_has_no_blobs_says_so(scene: Scene) -> None:
    """Where it needs one, and when it would leave one behind."""
    held = HeldBlobs()
    process, blind = await scene.process(blobs=held), await scene.process()
    await _talked(process, "small", 1, length=20)
    await _talked(process, "run-1", 1)
    await _refuses(blind.store, "run-1", (StorageMissing,), "a store without blobs")
    await _holds(blind.store, "small", 1, length=20)
    with refusal(StorageMissing, "an erasure without blobs"):
        await blind.store.erase_run("run-1", by="ada", why="so")
    tombstone = (await process.run()).tombstone
    ensure(tombstone and not tombstone.whole, "an erasure is not whole before that")
    ensure(await blind.store.holds_blobs(), "there are blobs that no row needs")
    await process.store.erase_run("run-1", by="ada", why="so")
    tombstone = (await process.run()).tombstone
    told = (tombstone and tombstone.whole, len(held.data), await blind.store.holds_blobs())
    expect(told, (True, 0, False), "whether all is gone in the end, and blobs, and their notes")


async def whether_there_are_blobs_is_known(scene: Scene) -> None:
    """To who has none as well, whatever stands in them, and until they are gone."""
    process, blind = await scene.process(blobs=HeldBlobs()), await scene.process()
    other = await scene.process(blobs=HeldBlobs())
    records: dict[str, dict[str, Any]] = {
        "an input": {"document": _value(1)},
        "an answer": {"outcome": Success(_value(2))},
        "a beginning of an input": {"document": _value(3) + b"1", "cuts": (len(_value(3)),)},
        "what a run is given": {},
        "what a run came to": {},
    }
    for number, (what, record) in enumerate(records.items()):
        run_id = f"run-{number}"
        given = _value(4) if what == "what a run is given" else b"1"
        fence = await process.start(run_id, given)
        if record:
            await process.append(fence, "tool", 1, **record)
        output = _value(5) if what == "what a run came to" else b"1"
        await process.end(fence, output_json=output)
        ensure(await blind.store.holds_blobs(), f"{what} is known to be in a blob")
        expect(await _looked_for(process), (1, 0), f"whether the blob of {what} is there")
        expect(await _looked_for(other), (1, 1), f"whether the blob of {what} is elsewhere")
        expect(await _looked_for(blind), (0, 0), "the blobs that are looked for nowhere")
        await process.store.erase_run(run_id, by="ada", why="so")
        ensure(not await blind.store.holds_blobs(), f"{what} is known to be gone")
        expect(await _looked_for(other), (0, 0), f"whether {what} is looked for any more")


async def _looked_for(process: Process) -> tuple[int, int]:
    """Return how many blobs are looked for, and how many of them are not there."""
    found = await process.store.look_for_blobs()
    return found.looked_for, len(found.missing)


async def an_erasure_deletes_what_nobody_else_needs(scene: Scene) -> None:
    """And is whole only then; a blob store that is away keeps it from that until it is back."""
    held = HeldBlobs()
    process = await scene.process(blobs=held)
    for run_id in ("run-1", "run-2"):
        await _talked(process, run_id, 1)
    ours = len(held.data)
    await process.store.erase_run("run-1", by="ada", why="so")
    ensure(0 < len(held.data) < ours, "the blobs of one are gone")
    await _holds(process.store, "run-2", 1)
    held.deletes = False
    with refusal(StorageError, "an erasure that cannot delete blobs"):
        await process.store.erase_run("run-2", by="ada", why="so")
    tombstone = (await process.run("run-2")).tombstone
    ensure(tombstone and not tombstone.whole, "an erasure is not whole before that")
    held.deletes = True
    await process.store.erase_run("run-2", by="ada", why="so")
    tombstone = (await process.run("run-2")).tombstone
    told = (tombstone and tombstone.whole, len(held.data))
    expect(told, (True, 0), "whether all is gone in the end, and blobs")


async def a_collection_deletes_what_nobody_else_needs(scene: Scene) -> None:
    """Also what one could not delete before, and nothing of what goes on."""
    held = HeldBlobs()
    process = await scene.process(blobs=held)
    live = await process.start("live", _given(1, 4))
    await process.append(live, "model", 1, document=_value(90), outcome=Success(_value(91)))
    needed = set(held.data)
    await _talked(process, "run-1", 1)
    await _talked(process, "run-2", 40)
    held.deletes = False
    with refusal(StorageError, "a collection that cannot delete blobs"):
        await collected(process.store, everything(process.store))
    ensure(len(held.data) > len(needed), "blobs that cannot be deleted")
    held.deletes = True
    await collected(process.store, everything(process.store))
    counts = await process.store.count_runs()
    expect(sum(counts.values()), 1, "runs that are left")
    expect(set(held.data), needed, "blobs that are left")
    expect(await process.store.read_run_input("live"), _given(1, 4), "the input of what goes on")
    found = await process.store.read_input("live", "model", 1)
    expect(found, _value(90), "an input of what goes on")


async def a_collection_leaves_what_is_needed_meanwhile(scene: Scene) -> None:
    """Runs that share large beginnings come and go at once, and each is whole while it is there."""
    held = HeldBlobs()
    one, other, collector = [await scene.process(blobs=held) for _ in range(3)]
    expiry = everything(collector.store, "runs")

    async def working(process: Process, number: int) -> None:
        for turn in range(4):
            run_id = f"run-{number}-{turn}"
            fence = await process.start(run_id, _given(1, 4))
            document, cuts = _given(1, 3), (len(_value(1)) + 1,)
            await process.append(fence, "model", 1, document=document, cuts=cuts)
            await collected(collector.store, expiry)
            found = await process.store.read_input(run_id, "model", 1)
            expect(found, document, "an input that was written while others were deleted")
            expect(await process.store.read_run_input(run_id), _given(1, 4), "what a run was given")
            await process.store.end_run(fence, RunEnd(RunState.COMPLETED, _answer(2)))

    await asyncio.gather(*(working((one, other)[number % 2], number) for number in range(4)))


async def what_was_refused_takes_nothing_with_it(scene: Scene) -> None:
    """A write that is not made may have put blobs; those of others stay when they are deleted."""
    held = HeldBlobs()
    process = await scene.process(blobs=held)
    fence = await process.start("run-1", _given(1, 4))
    await process.append(fence, "model", 1, document=_value(2), outcome=Success(_value(3)))
    again = await process.store.start_run(new_run("run-1", _given(1, 4)), process.holder)
    ensure(not again.created, "a run that is there is not started")
    await process.store.start_run(new_run("run-1", _given(5, 4)), None)
    stale = Fence(fence.run_id, fence.holder, fence.generation + 1)
    with refusal(LeaseLost, "a record under another claim"):
        await process.append(stale, "model", 2, document=_value(2), outcome=Success(_value(3)))
    with refusal(StorageError, "a second record of a place"):
        await process.append(fence, "model", 1, document=_value(4), attempt=2)
    await process.end(fence, RunState.FAILED)
    with refusal(LeaseLost, "an end under a claim that is over"):
        await process.end(fence, output_json=_given(1, 4))
    await _talked(process, "gone", 1)
    await process.store.erase_run("gone", by="ada", why="so")
    await collected(process.store, everything(process.store, "receipts"))
    expect(await process.store.read_run_input("run-1"), _given(1, 4), "what the run was given")
    found = await process.store.read_input("run-1", "model", 1)
    answer = await process.store.read_payload("run-1", "model", 1)
    expect((found, answer), (_value(2), _value(3)), "what the run recorded")


async def a_run_is_imported_with_its_large_values(scene: Scene) -> None:
    """Which are put again, since those that it was exported from are gone."""
    held = HeldBlobs()
    process = await scene.process(blobs=held)
    await _talked(process, "run-1", 1)
    await process.attempted(ReceiptState.COMPLETED)
    archive = await export_run(process.store, "run-1")
    await emptied(process)
    expect(len(held.data), 0, "blobs of what is gone")
    ensure(await placed(process.store, archive), "the run was not there")
    ensure(len(held.data) >= 6, "its large values stand outside again")
    await _holds(process.store, "run-1", 1)
    again = await export_run(process.store, "run-1")
    ensure(again == archive, "the run is as it was")


async def _grows(held: HeldBlobs, write: Awaitable[T], what: str) -> T:
    """Expect that a write puts blobs; return what it returns."""
    before = set(held.data)
    done = await write
    ensure(set(held.data) > before, f"{what} stands outside when it is large")
    return done


def _value(seed: int, length: int = 20_000, *, noise: bool = True) -> bytes:
    """Return a document; with `noise`, packing does not make it much shorter."""
    dice = random.Random(seed)  # noqa: S311 - it draws cases
    return b'"%s"' % (dice.randbytes(length // 2).hex() if noise else "a" * length).encode()


def _answer(seed: int, length: int = 20_000, *, noise: bool = True) -> bytes:
    """Return bytes that no check of a packed value would tell from others."""
    return random.Random(seed).randbytes(length) if noise else b"a" * length  # noqa: S311 - as above


def _given(seed: int, count: int, **how: Any) -> bytes:
    return b"[%s]" % b",".join(_value(seed + number, **how) for number in range(count))


async def _talked(process: Process, run_id: str, seed: int, **how: Any) -> None:
    """Run a conversation of large values to its end."""
    fence = await process.start(run_id, _given(seed, 4, **how))
    ends = [len(_given(seed, count, **how)) - 1 for count in range(1, 5)]
    for count in (3, 4):
        document, answer = _given(seed, count, **how), Success(_answer(seed + count, **how))
        cuts = tuple(ends[:count])
        await process.append(fence, "model", count, document=document, cuts=cuts, outcome=answer)
    await process.end(fence, output_json=_answer(seed + 5, **how))


async def _holds(store: RunStore, run_id: str, seed: int, **how: Any) -> None:
    """Expect the exact bytes of a conversation."""
    expect(await store.read_run_input(run_id), _given(seed, 4, **how), "what a run was given")
    row = await store.read_run(run_id)
    expect(row and row.output_json, _answer(seed + 5, **how), "what a run came to")
    for count in (3, 4):
        found = await store.read_input(run_id, "model", count)
        expect(found, _given(seed, count, **how), "the input of a record")
        found = await store.read_payload(run_id, "model", count)
        expect(found, _answer(seed + count, **how), "the answer of a record")


async def _refuses(
    store: RunStore, run_id: str, kinds: tuple[type[Exception], ...], what: str
) -> None:
    """Expect that nothing large of a conversation can be read."""
    with refusal(kinds, f"{what}: what the run was given"):
        await store.read_run_input(run_id)
    with refusal(kinds, f"{what}: what the run came to"):
        await store.read_run(run_id)
    with refusal(kinds, f"{what}: the input of a record"):
        await store.read_input(run_id, "model", 3)
    with refusal(kinds, f"{what}: the answer of a record"):
        await store.read_payload(run_id, "model", 4)
