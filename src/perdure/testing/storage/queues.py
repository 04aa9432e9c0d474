from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from perdure.activity import Rest
from perdure.engine.archive import decode_archive
from perdure.engine.queues import QueueLimits, QueueRow
from perdure.engine.store import RunState
from perdure.fence import Fence
from perdure.queued import Queued
from perdure.testing.storage.expecting import ensure, expect
from perdure.testing.storage.scene import SERVED, Process, Scene, new_run
from perdure.testing.storage.upkeep import exported, placed

_HOUR: Final = 3600.0


async def queues_are_declared_and_listed(scene: Scene) -> None:
    """The last limits hold, by every process; what waits is counted, and a pause stays."""
    one, other = await scene.process(), await scene.process()
    limits = QueueLimits(concurrency=3, key_concurrency=2, rate_runs=10, rate_seconds=0.5)
    await one.store.declare_queue("mail", QueueLimits())
    await one.store.declare_queue("calls", QueueLimits(concurrency=1))
    await _start(one, "mail", 2)
    expect(await one.claim(1), ["mail-0"], "claims of a queue without limits")
    ensure(await other.store.pause_queue("mail"), "there is a queue that is paused")
    await other.store.declare_queue("mail", limits)
    for process in (one, other):
        rows = [
            QueueRow("calls", QueueLimits(concurrency=1), paused=False, pending=0, running=0),
            QueueRow("mail", limits, paused=True, pending=1, running=1),
        ]
        expect(await process.store.list_queues(), rows, "the queues")
    for change in (one.store.pause_queue, one.store.resume_queue):
        ensure(not await change("none"), "there is none that nobody declared")


async def a_run_of_a_queue_waits_in_it(scene: Scene) -> None:
    """Whoever starts it, it is not claimed as it is started, and it is known where it waits."""
    process = await scene.process()
    await process.store.declare_queue("mail", QueueLimits())
    place = Queued("mail", "tenant-1", -5)
    run = msgspec.structs.replace(new_run("run-1"), queued=place)
    started = await process.store.start_run(run, process.holder)
    expect((started.created, started.claimed), (True, None), "a start into a queue")
    row = await process.run()
    expect((started.row, row.queued, row.state), (row, place, RunState.PENDING), "a run that waits")
    (listed,) = await process.store.list_runs(state=None, limit=9)
    expect(listed, row, "a run in a list")
    expect(await process.claim(9, ("work", 2)), [], "claims of what is not served")
    expect([row.run_id for row in await process.store.unserved([])], ["run-1"], "what waits")
    (claim,) = await process.store.claim_runs(process.holder, SERVED, 9)
    expect((claim.fence.generation, claim.input_json), (1, b"null"), "a claim from a queue")
    (attempt,) = await process.store.list_attempts("run-1")
    expect(attempt.holder, process.holder, "the attempt under way")


async def no_more_are_claimed_than_a_queue_lets_through(scene: Scene) -> None:
    """Those of higher priority first, then the oldest; an end makes a place, whoever claims it."""
    one, other = await scene.process(), await scene.process()
    await one.store.declare_queue("mail", QueueLimits(concurrency=2))
    await _start(one, "mail", 2)
    await _start(one, "mail", 2, priority=1, name="first")
    expect(await one.claim(), ["first-0", "first-1"], "claims by priority")
    expect(await other.claim(), [], "claims from a full queue")
    row = await one.run("first-1")
    await one.end(_fence(row.run_id, one, 1))
    expect(await other.claim(), ["mail-0"], "a claim of the place of a run that ended")
    await other.store.release_run(_fence("mail-0", other, 1))
    expect(await one.claim(), ["mail-0"], "a claim of a run that was given back")
    await one.store.request_cancel("first-0")
    expect(await other.claim(), [], "a place that a run that is cancelling still holds")
    await one.store.retire_worker(one.holder)
    expect(await other.claim(), ["mail-0", "mail-1"], "claims after a worker has gone")


async def a_full_queue_keeps_nobody_else_waiting(scene: Scene) -> None:
    """Nor does a paused one; what waits in queues and what waits in none both go on."""
    process = await scene.process()
    store = process.store
    await store.declare_queue("full", QueueLimits(concurrency=1))
    await store.declare_queue("open", QueueLimits())
    await _start(process, "full", 2, priority=9)
    expect(await process.claim(), ["full-0"], "a claim that fills a queue")
    await store.declare_queue("still", QueueLimits())
    await store.pause_queue("still")
    await _start(process, "still", 1, priority=9)
    await _start(process, "open", 3)
    for number in range(3):
        await store.start_run(new_run(f"plain-{number}"), None)
    first, second = await process.claim(1), await process.claim(1)
    expect(sorted(first + second), ["open-0", "plain-0"], "claims of one place after the other")
    left = ["open-1", "open-2", "plain-1", "plain-2"]
    expect(sorted(await process.claim()), left, "claims of all that may be claimed")
    await store.resume_queue("still")
    expect(await process.claim(), ["still-0"], "a claim from a queue that was resumed")
    wanted = await store.claim_runs(process.holder, SERVED, 9, ["none"])
    expect(wanted, [], "claims of what is not there")


async def a_key_has_places_of_its_own(scene: Scene) -> None:
    """Much that waits under one key keeps none of the others waiting; without a key none counts."""
    process = await scene.process()
    await process.store.declare_queue("mail", QueueLimits(concurrency=6, key_concurrency=2))
    await _start(process, "mail", 5, key="a", priority=1)
    await _start(process, "mail", 1, key="b", name="b")
    await _start(process, "mail", 4, name="free")
    claimed = ["mail-0", "mail-1", "b-0", "free-0", "free-1", "free-2"]
    expect(await process.claim(), claimed, "claims by keys")
    await process.end(_fence("free-0", process, 1))
    await process.end(_fence("mail-1", process, 1))
    expect(await process.claim(1), ["mail-2"], "a claim of the place of a key")
    await _start(process, "mail", 2, key="b", priority=5, name="late")
    expect(await process.claim(), ["late-0"], "a claim of a key that has a place left")
    await process.store.declare_queue("solo", QueueLimits(key_concurrency=1))
    await _start(process, "solo", 2, key="a")
    for _ in range(2):
        expect(await process.claim(), ["solo-0"], "a claim of what begins or goes on with a key")
        await process.store.release_run(
            _fence("solo-0", process, (await process.run("solo-0")).generation)
        )


async def a_rate_bounds_what_begins(scene: Scene) -> None:
    """Going on is no beginning: a run that was parked or given back is not counted twice."""
    process = await scene.process()
    store = process.store
    await store.declare_queue("mail", QueueLimits(rate_runs=2, rate_seconds=_HOUR))
    await _start(process, "mail", 4)
    expect(await process.claim(), ["mail-0", "mail-1"], "claims within a rate")
    expect(await process.claim(), [], "claims beyond it")
    expect(await store.wake_runs(), 0, "whether a rate lets one begin")
    await store.release_run(_fence("mail-1", process, 1))
    expect(await process.claim(), ["mail-1"], "a claim of what has begun before")
    await process.end(_fence("mail-0", process, 1))
    expect(await process.claim(), [], "claims after one has ended")
    await store.declare_queue("mail", QueueLimits(rate_runs=3, rate_seconds=_HOUR))
    expect(await store.wake_runs(), 1, "whether a rate lets one begin")
    await store.pause_queue("mail")
    expect(await store.wake_runs(), 0, "whether a paused queue lets one begin")
    await store.resume_queue("mail")
    expect(await process.claim(), ["mail-2"], "a claim within a higher rate")
    await store.declare_queue("mail", QueueLimits(rate_runs=1, rate_seconds=1e-9))
    expect(await process.claim(), ["mail-3"], "a claim after the time of a rate")


async def a_run_that_waits_for_a_time_holds_no_place(scene: Scene) -> None:
    """It goes through its queue again when the time has come."""
    process = await scene.process()
    store = process.store
    await store.declare_queue("mail", QueueLimits(concurrency=1, key_concurrency=1))
    await _start(process, "mail", 3, key="a")
    expect(await process.claim(), ["mail-0"], "a claim that fills a queue")
    await store.park_run(_fence("mail-0", process, 1), Rest(1.0), executed=0, replayed=0)
    expect(await process.claim(), ["mail-1"], "a claim of the place of a run that sleeps")
    expect(await store.wake_runs(), 1, "runs that are woken")
    expect(await process.claim(), [], "claims while its place is taken")
    await store.request_cancel("mail-2")
    await process.end(_fence("mail-1", process, 1))
    expect(await process.claim(), ["mail-0"], "a claim of what was woken")
    expect(await process.state("mail-2"), RunState.CANCELLED, "a run cancelled in its queue")


async def many_that_claim_never_exceed_a_limit(scene: Scene) -> None:
    """Several processes that claim at the same time share the places among them."""
    processes = [await scene.process() for _ in range(4)]
    store = processes[0].store
    limits = QueueLimits(concurrency=5, key_concurrency=2)
    await store.declare_queue("mail", limits)
    await store.declare_queue("rated", QueueLimits(rate_runs=7, rate_seconds=_HOUR))
    for key in "abcd":
        await _start(processes[0], "mail", 10, key=key, name=key)
    await _start(processes[0], "rated", 12)
    most: set[int] = set()
    left = 40
    while left:
        found = await asyncio.gather(
            *(each.store.claim_runs(each.holder, SERVED, 3) for each in processes * 2)
        )
        claims = [claim for claimed in found for claim in claimed]
        claimed = [claim.fence for claim in claims if not claim.fence.run_id.startswith("rated")]
        keys = [fence.run_id[0] for fence in claimed]
        ensure(len(keys) <= 5, f"no more than 5 runs of a queue are executed, found {len(keys)}")
        ensure(all(keys.count(key) <= 2 for key in keys), f"2 runs of a key, found {keys}")
        most.add(len(keys))
        left -= len(keys)
        await asyncio.gather(*(processes[0].end(fence) for fence in claimed))
    expect(max(most), 5, "the most runs that were executed at once")
    await processes[1].claim()
    rated = await store.list_runs(state=RunState.RUNNING, limit=999)
    expect(len(rated), 7, "the runs that a rate let begin")


async def a_run_takes_its_queue_with_it(scene: Scene) -> None:
    """To another store, which knows the queue then; an erasure takes its key."""
    process = await scene.process()
    store = process.store
    await store.declare_queue("mail", QueueLimits())
    await _start(process, "mail", 1, key="a", priority=3)
    expect(await process.claim(), ["mail-0"], "a claim")
    row = await process.end(_fence("mail-0", process, 1))
    expect(row.queued, Queued("mail", "a", 3), "where a run waited")
    archive = decode_archive(await exported(store, "mail-0"))
    queued = Queued("elsewhere", "a", 3)
    moved = msgspec.structs.replace(archive.run, run_id="moved", queued=queued)
    await placed(store, msgspec.structs.replace(archive, run=moved))
    expect((await process.run("moved")).queued, queued, "where a run that came waits")
    names = [queue.name for queue in await store.list_queues()]
    expect(names, ["elsewhere", "mail"], "the queues")
    await store.erase_run("mail-0", by="ada", why="asked")
    expect((await process.run("mail-0")).queued, Queued("mail", None, 3), "an erased run")


async def a_claim_for_one_queue_takes_of_that_alone(scene: Scene) -> None:
    """Its first run, as far as its limits let it through, and nothing of others or of none."""
    one, other = await scene.process(), await scene.process()
    for name in ("mail", "calls"):
        await one.store.declare_queue(name, QueueLimits(concurrency=2))
    await one.store.start_run(new_run("plain"), None)
    await _start(one, "calls", 2, priority=9)
    await _start(one, "mail", 3)
    await _start(one, "mail", 1, priority=5, name="urgent")

    async def claim(process: Process, queue: str, limit: int) -> list[str]:
        claims = await process.store.claim_runs(process.holder, SERVED, limit, queue=queue)
        return [claim.fence.run_id for claim in claims]

    expect(await claim(one, "mail", 1), ["urgent-0"], "the first claim of a queue")
    expect(await claim(other, "mail", 9), ["mail-0"], "what else it lets through")
    expect(await claim(other, "none", 9), [], "claims of a queue that is not there")
    expect(await claim(one, "calls", 9), ["calls-0", "calls-1"], "claims of another queue")
    expect(await one.claim(9), ["plain"], "claims of any")


async def what_waits_for_a_worker_is_listed_page_by_page(scene: Scene) -> None:
    """In the order in which it was written, whether a queue lets it through or not."""
    one, other = await scene.process(), await scene.process()
    await one.store.declare_queue("mail", QueueLimits(concurrency=1))
    await _start(one, "mail", 2)
    for number in range(3):
        await other.store.start_run(new_run(f"plain-{number}"), None)
    expect(await one.claim(1, ("wor", 1)), [], "claims of what is not served")
    first = await one.store.waiting_runs(limit=3)
    expect([run.run_id for run in first], ["mail-0", "mail-1", "plain-0"], "the first page")
    expect({(run.function, run.version, run.session) for run in first}, {("work", 1, None)}, "runs")
    (claim,) = await one.store.claim_runs(one.holder, SERVED, 1, ["plain-1"])
    await one.store.release_run(claim.fence)
    rest = await other.store.waiting_runs(limit=3, after=first[-1].number)
    expect(
        [(run.run_id, run.generation) for run in rest], [("plain-1", 1), ("plain-2", 0)], "the rest"
    )
    await one.claim(9)
    left = await one.store.waiting_runs(limit=9)
    expect([run.run_id for run in left], ["mail-1"], "what waits for a place")
    await one.store.request_cancel("mail-1")
    live = await other.store.live_runs(["none", "mail-0", "mail-1", "plain-0"])
    expect(sorted(live), ["mail-0", "plain-0"], "those that have not ended")


async def _start(
    process: Process,
    queue: str,
    count: int,
    *,
    key: str | None = None,
    priority: int = 0,
    name: str | None = None,
) -> None:
    """Start runs into a queue, whose ids are its name, or another one, and a number."""
    for number in range(count):
        run = new_run(f"{name or queue}-{number}")
        queued = Queued(queue, key, priority)
        await process.store.start_run(msgspec.structs.replace(run, queued=queued), process.holder)


def _fence(run_id: str, process: Process, generation: int) -> Fence:
    return Fence(run_id, process.holder, generation)
