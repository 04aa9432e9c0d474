from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Final

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.engine.retention import Expiry
from perdure.engine.store import RunRow, RunState
from perdure.errors import EffectErased, LeaseLost
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import IDENTITY, Process, Scene, new_run, settlement
from perdure.testing.storage.talking import draft, said
from perdure.testing.storage.upkeep import CLASSES, LATER_SECONDS, collected, everything

_NOTHING: Final = Expiry(None, None, None, None, None)


async def what_is_counted_is_what_is_deleted(scene: Scene) -> None:
    """Class by class, and nothing of another class, of what goes on or of what is in doubt."""
    process, other = await scene.process(), await scene.process()
    over, lasting = await _some_of_everything(process, other)
    counts = {
        "runs": len(over),
        "receipts": 5,
        "tombstones": 2,
        "audit": 0,
        "workers": 1,
        "sessions": 1,
    }
    for name in CLASSES:
        expiry = everything(process.store, name)
        wanted = {**dict.fromkeys(CLASSES, 0), name: counts[name]}
        before = await _left(process)
        expect(dict(await process.store.count_expired(expiry)), wanted, f"expired {name}")
        expect(await _left(process), before, "what is there after counting")
        expect(await collected(process.store, expiry), wanted, f"{name} that are gone")
        again = dict(await process.store.count_expired(expiry))
        expect(again, dict.fromkeys(CLASSES, 0), f"expired {name} afterwards")
        for run_id in over:
            row = await process.store.read_run(run_id)
            ensure(row is None, f"the run {run_id} is gone")
        for row in lasting:
            expect(await process.run(row.run_id), row, "a run that stays")
            rows = (await process.store.read_journal(row.run_id)).rows
            expect(len(rows), int(row.tombstone is None), "the records of a run that stays")
    kept = await process.store.list_receipts(ambiguous_only=False, limit=99)
    whose = Counter(receipt.run_id for receipt in kept)
    wanted = {"doubted": 1, "running": 2, "parked": 2, "waits": 2, "invoice-18": 1}
    expect(whose, wanted, "whose receipts stay")


async def only_what_was_over_before_an_instant_is_deleted(scene: Scene) -> None:
    """What ends at that instant or after it stays, and where none is given, all of it."""
    process = await scene.process()
    rows = [await _ended(process, f"run-{number}", effects=0) for number in range(3)]
    receipts = [await _settled(process, number) for number in range(3)]
    ends = [row.finished_at for row in rows], [receipt.settled_at for receipt in receipts]
    for expiry, runs, settled in (
        (_NOTHING, 0, 0),
        (Expiry(ends[0][0], ends[1][0], None, None, None), 0, 0),
        (Expiry(ends[0][1], None, None, None, None), 1, 0),
        (Expiry(ends[0][1], ends[1][2], None, None, None), 0, 2),
    ):
        counted = await process.store.count_expired(expiry)
        expect((counted["runs"], counted["receipts"]), (runs, settled), "what has expired")
        gone = await collected(process.store, expiry)
        expect((gone["runs"], gone["receipts"]), (runs, settled), "what is gone")
    left = [row.run_id for row in rows if await process.store.read_run(row.run_id) is not None]
    expect(left, ["run-1", "run-2"], "the runs that are left")
    kept = await process.store.list_receipts(ambiguous_only=False, limit=9)
    expect(kept, [receipts[2]], "the receipts that are left")


async def beginnings_that_others_share_stay(scene: Scene) -> None:
    """Until the last run that begins alike is gone."""
    process = await scene.process()
    dice = random.Random(9)  # noqa: S311 - it draws cases
    parts = [dice.randbytes(700).hex().encode() for _ in range(6)]
    ends = [*itertools.accumulate(map(len, parts))]
    inputs: dict[str, bytes] = {}
    rows: list[RunRow] = []
    for number in range(6):
        run_id, length = f"run-{number}", dice.randint(2, 6)
        given = b'["' + b'","'.join(parts[:length]) + b'"]'
        fence = await process.start(run_id, given)
        document = b"".join(parts[:length])
        await process.append(fence, "model", 1, document=document, cuts=tuple(ends[:length]))
        inputs[run_id] = given
        rows.append(await process.end(fence, output_json=given))
    befores = [row.finished_at for row in rows[1:]]
    for before in (*befores, process.store.clock.now() + LATER_SECONDS):
        await collected(process.store, Expiry(before, None, None, None, None))
        for run_id, given in [*inputs.items()]:
            row = await process.store.read_run(run_id)
            if row is None:
                del inputs[run_id]
                continue
            length = given.count(b",") + 1
            found = await process.store.read_input(run_id, "model", 1)
            expect(found, b"".join(parts[:length]), "an input that began as one that is gone")
            expect(await process.store.read_run_input(run_id), given, "what a run was given")
            expect(row.output_json, given, "what a run came to")
    expect(inputs, {}, "runs that are left")


async def an_effect_is_not_sent_again_for_as_long_as_anything_of_it_is_kept(scene: Scene) -> None:
    """Its receipt outlives its run, and its tombstone the receipt; then it is a new one."""
    process = await scene.process()
    fence = await process.start(IDENTITY.run_id)
    receipt = await process.attempted_in(fence, ReceiptState.COMPLETED)
    await process.end(fence)
    await collected(process.store, everything(process.store, "runs"))
    expect(await process.store.read_run(fence.run_id), None, "a run that is gone")
    again = process.effect()
    expect(await process.store.claim_effect(again), (receipt, False), "a claim of an effect")
    await process.store.erase_receipts(fence.run_id, by="ada", why="so")
    await collected(process.store, everything(process.store, "runs", "receipts", "workers"))
    with refusal(EffectErased, "a claim of an erased effect"):
        await process.store.claim_effect(again)
    await collected(process.store, everything(process.store))
    await process.attempted()
    await process.store.start_run(new_run(fence.run_id), None)


async def a_worker_that_is_forgotten_is_still_gone(scene: Scene) -> None:
    """What it had under way is doubted, and what it asked about may be asked again."""
    process, other = await scene.process(), await scene.process()
    asked = await process.attempted(ReceiptState.AMBIGUOUS)
    await process.store.claim_lookup(asked, process.owner, LATER_SECONDS)
    left = await _settled(process, 2, None)
    fence = await process.start()
    await process.store.retire_worker(process.holder)
    gone = await collected(other.store, everything(other.store))
    expect(gone, {**dict.fromkeys(CLASSES, 0), "workers": 1}, "what is gone")
    holders = [worker.holder for worker in await other.store.list_workers()]
    expect(holders, [other.holder], "the workers that are known")
    doubted = await other.store.doubt_vanished(None)
    expect([receipt.operation_key for receipt in doubted], [left.operation_key], "what is doubted")
    _, mine = await other.store.claim_lookup(asked, other.owner, LATER_SECONDS)
    ensure(mine, "what a forgotten worker asked about may be asked again")
    with refusal(LeaseLost, "a claim of a worker that is forgotten"):
        await process.attempted(identity=OperationIdentity("invoice-18", "charge", "bank", 3))
    expect(await other.claim(), [fence.run_id], "claims of what it had under way")
    claims = await other.store.list_attempts(fence.run_id)
    expect([claim.holder for claim in claims], [process.holder, other.holder], "who claimed it")


async def _some_of_everything(process: Process, other: Process) -> tuple[list[str], list[RunRow]]:
    """Return the ids of the runs that are over, and those that are not."""
    gone = await other.store.register_worker("gone", LATER_SECONDS)
    over: list[str] = []
    for state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
        over.append(f"run-{state}")
        await _ended(process, over[-1], state)
    # Erased by a person: it keeps its tombstone, and its effects keep theirs.
    await _ended(process, "erased", effects=2)
    await process.store.erase_run("erased", by="ada", why="so")
    doubted = await process.start("doubted")
    await process.append(doubted, "tool", 1)
    await process.attempted_in(doubted, ReceiptState.AMBIGUOUS)
    await process.end(doubted)
    running = await process.start("running")
    parked = await process.start("parked")
    waits = await process.start("waits")
    for fence in (running, parked, waits):
        await process.append(fence, "tool", 1)
        await process.attempted_in(fence, ReceiptState.COMPLETED)
        await process.attempted_in(fence, ReceiptState.FAILED, 2)
    await process.end(parked, RunState.NEEDS_ATTENTION)
    await process.store.release_run(waits)
    await process.attempted(ReceiptState.COMPLETED)
    await _settled(process, 2, Move.REFUSE)
    await _settled(process, 3, Move.DOUBT)
    await said(other.store, draft("m-1"))
    await other.store.retire_worker(gone)
    names = ("erased", "doubted", "running", "parked", "waits")
    return over, [await process.run(name) for name in names]


async def _ended(
    process: Process, run_id: str, state: RunState = RunState.COMPLETED, effects: int = 1
) -> RunRow:
    fence = await process.start(run_id)
    await process.append(fence, "tool", 1)
    for number in range(effects):
        await process.attempted_in(fence, ReceiptState.COMPLETED, number + 1)
    return await process.end(fence, state)


async def _settled(process: Process, number: int, move: Move | None = Move.COMPLETE) -> Receipt:
    identity = OperationIdentity("invoice-18", "charge", "bank", number)
    receipt = await process.attempted(identity=identity)
    if move is not None:
        receipt, _ = await process.store.settle_effect(settlement(receipt, move))
    return receipt


async def _left(process: Process) -> object:
    receipts = await process.store.list_receipts(ambiguous_only=False, limit=99)
    workers = await process.store.list_workers()
    return await process.store.count_runs(), receipts, workers
