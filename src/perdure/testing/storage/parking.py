from __future__ import annotations

import asyncio
from typing import Any

from perdure.activity import Rest
from perdure.engine.store import NewRun, RunState
from perdure.errors import LeaseLost
from perdure.fence import Fence
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import SERVED, Process, Scene, message

_FAR: float = 1e10
_MANY = 1100
_MOST_WOKEN = 1000
"""The most that one call wakes, so that others need not wait for it."""


async def a_run_that_is_put_away_takes_nothing_but_rows(scene: Scene) -> None:
    """It sleeps until a time, or is suspended until a message comes; nobody claims it before."""
    process, other = await scene.process(), await scene.process()
    for run_id, rest, state in (
        ("run-1", Rest(_FAR), RunState.SLEEPING),
        ("run-2", Rest(_FAR, frozenset({"news"})), RunState.SUSPENDED),
        ("run-3", Rest(None, frozenset({"news"})), RunState.SUSPENDED),
    ):
        fence = await process.start(run_id)
        expect(await _parked(process, fence, rest), state, "a run that is put away")
        row = await other.run(run_id)
        told = (row.state, row.holder, row.wake_at, row.finished_at)
        expect(told, (state, None, rest.until, None), "where it stands")
        (attempt,) = await other.store.list_attempts(run_id)
        told = (attempt.ending, attempt.executed, attempt.replayed, attempt.ended_at is None)
        expect(told, (state.value, 3, 4, False), "how its claim ended")
        with refusal(LeaseLost, "a record of a run that was put away"):
            await process.append(fence, "tool", 1)
    expect(await other.store.wake_runs(), 0, "runs whose time has come")
    expect(await other.claim(), [], "claims of runs that are put away")
    expect(await other.store.read_settled(["run-1", "run-2"]), [], "runs that nobody waits for")
    counts = await other.store.count_runs()
    expect((counts[RunState.SLEEPING], counts[RunState.SUSPENDED]), (1, 2), "runs by state")
    listed = await other.store.list_runs(state=RunState.SLEEPING, limit=9)
    expect([row.run_id for row in listed], ["run-1"], "the runs that sleep")


async def what_waits_is_woken_when_its_time_is_over(scene: Scene) -> None:
    """Whether it sleeps or awaits a message; then it is the next claim of any worker."""
    process, other = await scene.process(), await scene.process()
    now = process.store.clock.now()
    await process.start("runs")
    for run_id, rest in (
        ("sleeps", Rest(now - 1)),
        ("awaits", Rest(now - 1, frozenset({"news"}))),
        ("later", Rest(now + 3600)),
        ("for ever", Rest(None, frozenset({"news"}))),
    ):
        await _parked(process, await process.start(run_id), rest)
    expect(await other.store.wake_runs(), 2, "runs whose time is over")
    expect(await process.store.wake_runs(), 0, "those again")
    row = await process.run("sleeps")
    expect((row.state, row.wake_at), (RunState.PENDING, None), "a run that was woken")
    claims = await other.store.claim_runs(other.holder, SERVED, 9)
    told = [(claim.fence.run_id, claim.fence.generation, claim.recovered) for claim in claims]
    expect(told, [("sleeps", 2, True), ("awaits", 2, True)], "the claims of what was woken")


async def so_many_are_woken_at_once_and_the_late_ones_first(scene: Scene) -> None:
    """In transactions of bounded size, from which no run is left out."""
    process, other = await scene.process(), await scene.process()
    now = process.store.clock.now()
    fences = await asyncio.gather(*(process.start(f"run-{number}") for number in range(_MANY)))
    await asyncio.gather(
        *(
            _parked(process, fence, Rest(now - 1 - (number * 7 % _MANY) / 1e3))
            for number, fence in enumerate(fences)
        )
    )
    latest = f"run-{next(n for n in range(_MANY) if n * 7 % _MANY == _MANY - 1)}"
    soonest = "run-0"
    woken = await other.store.wake_runs()
    ensure(0 < woken <= _MOST_WOKEN, f"one call wakes {woken} runs")
    expect(await other.state(latest), RunState.PENDING, "the run that is late the longest")
    expect(await other.state(soonest), RunState.SLEEPING, "the run that has only become due")
    while more := await other.store.wake_runs():
        woken += more
    expect(woken, _MANY, "the runs that were woken in all")


async def what_has_come_or_was_asked_for_is_not_put_away(scene: Scene) -> None:
    """A run waits for a worker where its message is there, and is cancelled if that was wanted."""
    process, other = await scene.process(), await scene.process()
    fences = {name: await process.start(name) for name in ("told", "odd", "cancelled", "both")}
    for run_id in ("told", "both"):
        await other.store.send_message(message(run_id))
    await other.store.send_message(message("odd", name="other"))
    for run_id in ("cancelled", "both"):
        row = await other.store.request_cancel(run_id)
        expect(row and row.state, RunState.CANCELLING, "a run whose end was asked for")
    ends: dict[str, Any] = {}
    for run_id, fence in fences.items():
        state = await _parked(process, fence, Rest(_FAR, frozenset({"news", "mail"})))
        row = await other.run(run_id)
        expect(row.state, state, "the state that was told")
        (attempt,) = await other.store.list_attempts(run_id)
        ends[run_id] = (state.value, row.wake_at, row.finished_at is None, attempt.ending)
    wanted = {
        "told": ("pending", None, True, "released"),
        "odd": ("suspended", _FAR, True, "suspended"),
        "cancelled": ("cancelled", None, False, "cancelled"),
        "both": ("cancelled", None, False, "cancelled"),
    }
    expect(ends, wanted, "runs that were to be put away")
    expect(await other.claim(), ["told"], "the runs that wait for a worker")


async def a_run_that_is_put_away_is_cancelled_at_once(scene: Scene) -> None:
    """And is not woken then; one that is executed is cancelling until its worker has ended it."""
    process, other = await scene.process(), await scene.process()
    now = process.store.clock.now()
    for run_id, rest in (("sleeps", Rest(now - 1)), ("awaits", Rest(None, frozenset({"news"})))):
        await _parked(process, await process.start(run_id), rest)
        row = await other.store.request_cancel(run_id)
        told = row and (row.state, row.wake_at, row.finished_at is None)
        expect(told, (RunState.CANCELLED, None, False), "a cancelled run")
    expect(await other.store.wake_runs(), 0, "cancelled runs that are woken")
    fence = await process.start()
    for _ in range(2):
        row = await other.store.request_cancel("run-1")
        told = row and (row.state, row.holder, row.finished_at)
        expect(told, (RunState.CANCELLING, process.holder, None), "a run that is cancelling")
    await process.append(fence, "tool", 1)
    expect((await process.end(fence, RunState.CANCELLED)).state, RunState.CANCELLED, "its end")


async def only_its_owner_puts_a_run_away(scene: Scene) -> None:
    """Neither an earlier claim of the run, nor another worker."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    await process.store.release_run(fence)
    (claim,) = await other.store.claim_runs(other.holder, SERVED, 9)
    odd = Fence("run-1", process.holder, claim.fence.generation)
    earlier = Fence("run-1", other.holder, 1)
    for each in (fence, odd, earlier, Fence("none", other.holder, 1)):
        with refusal(LeaseLost, "putting away the run of another worker"):
            await _parked(process, each, Rest(_FAR))
    expect(await other.state(), RunState.RUNNING, "a run that its owner executes")
    expect(await _parked(other, claim.fence, Rest(_FAR)), RunState.SLEEPING, "what its owner does")


async def a_run_is_woken_for_its_deadline(scene: Scene) -> None:
    """By which it has to have ended, and which every claim of it tells."""
    process, other = await scene.process(), await scene.process()
    for run_id, until, seconds in (
        ("run-1", None, 60.0),
        ("run-2", 5.5, 60.0),
        ("run-3", 9.0, 1.0),
    ):
        run = NewRun(run_id, "work", 1, b"null", 5.0, seconds, "its parent")
        started = await process.store.start_run(run, process.holder)
        at = 5.0 + seconds
        claim = started.claimed
        told = claim and (claim.deadline_at, claim.parent)
        expect(told, (at, "its parent"), "the deadline of a claim")
        expect((started.row.deadline_at, started.row.parent), (at, "its parent"), "a started run")
        assert claim is not None
        await _parked(process, claim.fence, Rest(until, frozenset({"news"})))
        row = await other.run(run_id)
        expect(row, await process.run(run_id), "a run, wherever it is read")
        wake_at = at if until is None else min(until, at)
        told = (row.wake_at, row.deadline_at, row.parent)
        expect(told, (wake_at, at, "its parent"), "when it is woken")
    expect(await other.store.wake_runs(), 3, "runs whose deadline is over")
    for claim in await other.store.claim_runs(other.holder, SERVED, 9):
        row = await process.run(claim.fence.run_id)
        told = (claim.deadline_at, claim.parent)
        expect(told, (row.deadline_at, "its parent"), "the deadline of a later claim")


async def the_end_of_a_run_is_told_to_the_one_that_started_it(scene: Scene) -> None:
    """Once, whatever it ends as; a parent that has ended, or is not there, is told nothing."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start("parent")
    over = await process.start("over")
    children = {f"child-{state}": state for state in RunState if state.ended}
    for run_id in children:
        await process.wait_for(fence, _told(run_id))
        await other.store.start_run(NewRun(run_id, "child", 1, b"1", 5.0, parent="parent"), None)
    for parent in ("over", "none"):
        run = NewRun(f"child-of-{parent}", "child", 1, b"1", 5.0, parent=parent)
        await other.store.start_run(run, None)
    rest = Rest(None, frozenset(map(_told, children)))
    expect(await _parked(process, fence, rest), RunState.SUSPENDED, "a run that awaits others")
    await process.end(over)
    for claim in await other.store.claim_runs(other.holder, (("child", 1),), 9):
        run_id = claim.fence.run_id
        await other.end(claim.fence, children.get(run_id, RunState.COMPLETED))
        expect(await process.state("parent"), RunState.PENDING, "a run whose child has ended")
    for run_id in children:
        await other.store.request_cancel(run_id)
    resumed = await other.store.resume_run("child-failed")
    ensure(resumed and resumed.state is RunState.PENDING, "a child that failed is resumed")
    await other.store.request_cancel("child-failed")
    messages = await process.store.list_messages("parent")
    named = sorted((each.message_id, each.name, each.payload_json) for each in messages)
    wanted = sorted((_told(run_id), _told(run_id), None) for run_id in children)
    expect(named, wanted, "what a parent is told")
    expect(await process.store.list_messages("over"), [], "what a parent is told that has ended")


async def a_cancellation_reaches_the_runs_below(scene: Scene) -> None:
    """All that a run has started, and what those have; not what it was started by."""
    process, other = await scene.process(), await scene.process()
    await process.start("top")
    fences: dict[str, Fence] = {}
    for run_id, parent in (
        ("run-1", "top"),
        ("a", "run-1"),
        ("b", "a"),
        ("c", "b"),
        ("d", "run-1"),
    ):
        run = NewRun(run_id, "work", 1, b"null", 5.0, parent=parent)
        started = await process.store.start_run(run, process.holder)
        assert started.claimed is not None
        fences[run_id] = started.claimed.fence
    await _parked(process, fences["a"], Rest(_FAR))
    await _parked(process, fences["c"], Rest(None, frozenset({"news"})))
    await process.end(fences["d"])
    listed = [row.run_id for row in await other.store.list_children("run-1", limit=9)]
    expect(listed, ["a", "d"], "the runs that a run started")
    await other.store.request_cancel("run-1")
    states = {run_id: (await other.state(run_id)).value for run_id in ("top", *fences)}
    wanted = {
        "top": "running",
        "run-1": "cancelling",
        "a": "cancelled",
        "b": "cancelling",
        "c": "cancelled",
        "d": "completed",
    }
    expect(states, wanted, "runs of which one was cancelled")


async def _parked(process: Process, fence: Fence, rest: Rest) -> RunState:
    return await process.store.park_run(fence, rest, executed=3, replayed=4)


def _told(run_id: str) -> str:
    """Return the name of the message that tells that a run has ended."""
    return f"perdure:run:{run_id}"
