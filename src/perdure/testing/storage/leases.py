from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from perdure.effects.receipt import Move
from perdure.effects.store import Owner
from perdure.engine.store import RunEnd, RunState
from perdure.errors import LeaseLost
from perdure.fence import Fence
from perdure.testing.storage.expecting import expect, refusal, soon
from perdure.testing.storage.scene import (
    SERVED,
    Process,
    Scene,
    delay,
    new_run,
    record,
    settlement,
)

_SHORT_SECONDS: Final = 0.05
_END: Final = RunEnd(RunState.COMPLETED, b"1")


async def every_worker_is_another(scene: Scene) -> None:
    """Also those of one name, and one that comes after another has gone."""
    one, other = await scene.process(), await scene.process()
    third = await one.store.register_worker("worker", 60.0)
    await one.store.retire_worker(third)
    fourth = await one.store.register_worker("worker", 60.0)
    expect(len({one.holder, other.holder, third, fourth}), 4, "holders")
    workers = await other.store.list_workers()
    told = [(row.holder, row.name, row.alive) for row in workers]
    standing = [(holder, "worker", True) for holder in (one.holder, other.holder, fourth)]
    expect(told, standing, "the workers, oldest first")


async def a_lease_that_runs_out_is_taken(scene: Scene) -> None:
    """Its runs wait for others, and whoever had it renews, claims and starts nothing any more."""
    gone, other = await scene.process(_SHORT_SECONDS), await scene.process()
    await gone.start()
    cancelled = await gone.start("run-2")
    await other.store.request_cancel("run-2")
    released = 0

    async def taken() -> bool:
        nonlocal released
        released += await other.store.sweep(other.holder)
        return released > 0

    await soon(taken, "a lease that ran out is taken")
    expect(released, 2, "runs that were released")
    expect(await other.store.sweep(other.holder), 0, "runs that are released again")
    expect(await other.state(), RunState.PENDING, "a run of a worker that is gone")
    expect(await other.state(cancelled.run_id), RunState.CANCELLED, "one that was cancelled")
    endings = [attempt.ending for attempt in await other.store.list_attempts("run-1")]
    expect(endings, ["lost"], "how its attempt ended")
    holders = [row.holder for row in await other.store.list_workers()]
    expect(holders, [other.holder], "the workers that are left")
    await _writes_nothing(gone, Fence("run-1", gone.holder, 1), other)
    expect(await gone.claim(), [], "claims of who is gone")
    with refusal(LeaseLost, "the renewal of a lease that was taken"):
        gone.store.renew_worker(gone.holder, 60.0)
    started = await gone.store.start_run(new_run("run-3"), gone.holder)
    expect(started.claimed, None, "what is started by who is gone")
    expect(await other.claim(), ["run-1", "run-3"], "claims of the others")


async def a_renewal_keeps_the_lease_and_tells_what_is_owned(scene: Scene) -> None:
    """One renewal is for all runs of a worker."""
    process, other = await scene.process(_SHORT_SECONDS), await scene.process()
    fences = [await process.start(run_id) for run_id in ("run-1", "run-2")]
    try:
        news = process.store.renew_worker(process.holder, 3600.0)
    except LeaseLost:
        raise AssertionError("a lease that ran out stands until somebody takes it") from None
    expect(news.owned, {(fence.run_id, 1) for fence in fences}, "what a worker owns")
    expect(len(news.cancelled), 0, "runs that are cancelled")
    await other.store.request_cancel("run-2")
    news = process.store.renew_worker(process.holder, 3600.0)
    expect(news.cancelled, {"run-2"}, "what is cancelled meanwhile")
    await asyncio.sleep(2 * _SHORT_SECONDS)  # past the end that it had at first
    expect(await other.store.sweep(other.holder), 0, "runs of a lease that stands")
    expect(await process.state(), RunState.RUNNING, "a run of a lease that stands")


async def a_worker_that_retires_gives_its_runs_back(scene: Scene) -> None:
    """At once, and those whose end was asked for are cancelled."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    await process.start("run-2")
    await other.store.request_cancel("run-2")
    await process.store.retire_worker(process.holder)
    expect(await other.state("run-2"), RunState.CANCELLED, "a run whose end was asked for")
    (claim,) = await other.store.claim_runs(other.holder, SERVED, 9)
    expect(claim.fence.generation, fence.generation + 1, "the next claim")
    endings = [attempt.ending for attempt in await other.store.list_attempts("run-1")]
    expect(endings, ["released", None], "how the attempts ended")


async def what_stands_under_another_fence_is_not_written(scene: Scene) -> None:
    """Another holder, an earlier or later claim, a run that is not there: none of it is written."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    changes: list[dict[str, Any]] = [
        {"holder": other.holder},
        {"holder": "nobody"},
        {"generation": 0},
        {"generation": 2},
        {"run_id": "none"},
    ]
    for change in changes:
        await _writes_nothing(process, msgspec.structs.replace(fence, **change), other)
    await process.append(fence, "tool", 1)
    await process.store.end_run(fence, _END)
    await _writes_nothing(process, fence, other)


async def _writes_nothing(process: Process, fence: Fence, other: Process) -> None:
    """Try every write of a run under a fence that does not hold."""
    store = process.store
    before = [await _everything(other, run_id) for run_id in ("run-1", fence.run_id)]
    with refusal(LeaseLost, "a record under a fence that does not hold"):
        await process.append(fence, "late", 1)
    with refusal(LeaseLost, "a record with pieces under a fence that does not hold"):
        await process.append(fence, "late", 2, document=b"123456", cuts=(3,))
    with refusal(LeaseLost, "a delay under a fence that does not hold"):
        await store.begin_timer(fence, *delay(fence), 5.0)
    with refusal(LeaseLost, "an end under a fence that does not hold"):
        await store.end_run(fence, _END)
    owner = Owner(fence.holder, fence.generation)
    if fence.generation > 0:  # 0 is an effect that belongs to no run
        with refusal(LeaseLost, "an effect under a fence that does not hold"):
            identity = msgspec.structs.replace(process.effect().identity, run_id=fence.run_id)
            key = identity.operation_key
            await store.claim_effect(
                process.effect(owner=owner, identity=identity, operation_key=key)
            )
    receipt = await other.attempted(
        identity=msgspec.structs.replace(
            process.effect().identity, run_id=f"{fence.run_id}-{fence.holder}-{fence.generation}"
        )
    )
    with refusal(LeaseLost, "a settlement under a fence that does not hold"):
        await store.settle_record(
            fence, settlement(receipt, Move.COMPLETE), record(fence, "late", 3)
        )
    expect(await store.read_receipt(receipt.operation_key), receipt, "the receipt of that")
    await store.release_run(fence)
    after = [await _everything(other, run_id) for run_id in ("run-1", fence.run_id)]
    expect(after, before, "what a run holds after writes under a fence that does not hold")


async def _everything(process: Process, run_id: str) -> list[Any]:
    """Return all that the writes of a run could have changed."""
    store = process.store
    return [
        await store.read_run(run_id),
        await store.read_journal(run_id),
        await store.list_operations(run_id),
        await store.list_attempts(run_id),
        await store.list_receipts(ambiguous_only=False, limit=99, run_id=run_id),
    ]
