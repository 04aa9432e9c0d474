from __future__ import annotations

import asyncio
from typing import Final

from perdure.effects.receipt import Move, ReceiptState
from perdure.engine.store import RunEnd, RunProblem, RunState
from perdure.errors import EffectAmbiguous, UnknownRun
from perdure.testing.storage.expecting import ensure, expect, refusal, soon
from perdure.testing.storage.scene import SERVED, Scene, new_run, settlement

DOCUMENTS: Final = (b"1", b"\x00", bytes(range(256)) * 40, b'"' + b"a" * 100_000 + b'"')
"""What comes back byte for byte: storage looks into none of it."""

_PROBLEM: Final = RunProblem("Code", "Type", "ends with a \x00 and an \U0001f980", "line\n" * 99)


async def a_run_is_written_once(scene: Scene) -> None:
    """The id is taken by the first; whoever starts it again finds that one, whatever he brings."""
    one, other = await scene.process(), await scene.process()
    first = await one.store.start_run(new_run("run-1", b'{"a": 1}'), None)
    expect((first.created, first.claimed), (True, None), "a run that is started for any worker")
    row = await one.run()
    expect(first.row, row, "the row of a run that was started")
    expect((row.state, row.generation, row.holder), (RunState.PENDING, 0, None), "a new run")
    for document in (b'{"a": 1}', b"2"):
        again = await other.store.start_run(new_run("run-1", document), other.holder)
        expect((again.created, again.claimed), (False, None), "starting a run again")
        expect(again.row, row, "the row of a run that is started again")
    expect(await other.store.read_run_input("run-1"), b'{"a": 1}', "the input of the run")
    expect(await one.store.read_run("none"), None, "an unknown run")
    with refusal(UnknownRun, "the input of an unknown run"):
        await one.store.read_run_input("none")


async def one_of_many_starts_creates_a_run(scene: Scene) -> None:
    """Callers of several processes that start the same runs at once get one owner for each."""
    processes = [await scene.process() for _ in range(3)]
    starts = [
        process.store.start_run(new_run(f"run-{number}"), process.holder)
        for number in range(20)
        for process in processes * 2
    ]
    started = await asyncio.gather(*starts)
    for number in range(20):
        of_run = [each for each in started if each.row.run_id == f"run-{number}"]
        claims = [each.claimed.fence for each in of_run if each.claimed is not None]
        expect(sum(each.created for each in of_run), 1, "starts that created a run")
        row = await processes[0].run(f"run-{number}")
        expect([fence.holder for fence in claims], [row.holder], "the owners of a run")


async def a_run_is_claimed_as_it_is_started(scene: Scene) -> None:
    """With a standing worker in one transaction; for one that is gone, it waits for any."""
    process = await scene.process()
    started = await process.store.start_run(new_run("run-1", b"7"), process.holder)
    claimed = started.claimed
    if claimed is None:
        raise AssertionError("a run that is started with a standing worker is its own")
    expect((claimed.fence.generation, claimed.recovered), (1, False), "a first claim")
    expect((claimed.input_json, claimed.function), (b"7", "work"), "what was claimed")
    (attempt,) = await process.store.list_attempts("run-1")
    expect((attempt.holder, attempt.ending), (process.holder, None), "the attempt under way")
    expect((attempt.worker, attempt.pid > 0), ("worker", True), "whose attempt it is")
    await process.store.retire_worker(process.holder)
    late = await process.store.start_run(new_run("run-2"), process.holder)
    expect((late.created, late.claimed), (True, None), "a start by who is gone")
    expect(late.row.state, RunState.PENDING, "a run that was started by who is gone")


async def waiting_runs_are_claimed_oldest_first_and_once(scene: Scene) -> None:
    """By name and version, those that are wanted, and by one worker."""
    one, other = await scene.process(), await scene.process()
    for number, version in enumerate([1, 1, 2, 1, 1]):
        await one.store.start_run(new_run(f"wait-{number}", version=version), None)
    expect(await one.claim(9, ("work", 3), ("wor", 11)), [], "claims of what is not there")
    waiting = await one.store.unserved([("work", 2)])
    found = [row.run_id for row in waiting]
    expect(found, ["wait-0", "wait-1", "wait-3", "wait-4"], "runs that nobody serves")
    wanted = await one.store.claim_runs(one.holder, SERVED, 9, ["wait-3", "none"])
    expect([claim.fence.run_id for claim in wanted], ["wait-3"], "claims of those wanted")
    expect(await one.claim(2), ["wait-0", "wait-1"], "claims up to a limit")
    both = [("work", 1), ("work", 2)]
    first, second = await asyncio.gather(one.claim(9, *both), other.claim(9, *both))
    expect(sorted(first + second), ["wait-2", "wait-4"], "claims by two at once")
    counts = await one.store.count_runs()
    expect(set(counts), set(RunState), "the states that are counted")
    expect((counts[RunState.RUNNING], counts[RunState.PENDING]), (5, 0), "runs by state")


async def no_run_is_claimed_twice(scene: Scene) -> None:
    """Several processes that claim at the same time share the runs out among them."""
    processes = [await scene.process() for _ in range(3)]
    names = [f"run-{number}" for number in range(60)]
    await asyncio.gather(*(processes[0].store.start_run(new_run(name), None) for name in names))
    claimed: list[str] = []

    async def claim_all(number: int) -> None:
        while (await processes[0].store.count_runs())[RunState.PENDING]:
            claimed.extend(await processes[number].claim(4))

    await asyncio.gather(*(claim_all(number) for number in range(3) for _ in range(2)))
    expect(sorted(claimed), sorted(names), "what was claimed")


async def an_end_is_kept_as_it_was_given(scene: Scene) -> None:
    """Output and problem, any bytes and any text, with what was executed and replayed."""
    process = await scene.process()
    ends = [RunEnd(RunState.COMPLETED, document, executed=3) for document in DOCUMENTS]
    ends += [
        RunEnd(RunState.FAILED, problem=_PROBLEM, executed=1, replayed=2),
        RunEnd(RunState.CANCELLED),
        RunEnd(RunState.NEEDS_ATTENTION, problem=_PROBLEM),
    ]
    for number, end in enumerate(ends):
        run_id = f"run-{number}"
        fence = await process.start(run_id, DOCUMENTS[number % len(DOCUMENTS)])
        expect(await process.store.read_settled([run_id]), [], "a run under way")
        expect(await process.store.end_run(fence, end), end.state, "the state after an end")
        row = await process.run(run_id)
        expect((row.state, row.holder), (end.state, None), "a run that ended")
        expect(row.output_json, end.output_json, "the output of a run")
        expect(row.problem, end.problem, "the problem of a run")
        ensure(row.finished_at is not None, "a run that ended has an end")
        (attempt,) = await process.store.list_attempts(run_id)
        counts = (attempt.ending, attempt.executed, attempt.replayed)
        expect(counts, (end.state, end.executed, end.replayed), "the end of an attempt")
        expect(await process.store.read_settled([run_id, "none"]), [row], "a run that settled")
        document = await process.store.read_run_input(run_id)
        expect(document, DOCUMENTS[number % len(DOCUMENTS)], "the input of a run")
    listed = await process.store.list_runs(state=None, limit=3)
    expect([row.run_id for row in listed], ["run-6", "run-5", "run-4"], "the newest runs")
    failed = await process.store.list_runs(state=RunState.FAILED, limit=9)
    expect([row.run_id for row in failed], ["run-4"], "the runs of a state")


async def a_run_that_is_given_back_goes_on_elsewhere(scene: Scene) -> None:
    """Each claim has a higher generation, and the attempts tell of all of them."""
    one, other = await scene.process(), await scene.process()
    fence = await one.start(input_json=b"7")
    await one.store.release_run(fence)
    expect(await one.state(), RunState.PENDING, "a run that was given back")
    (claim,) = await other.store.claim_runs(other.holder, SERVED, 9)
    expect((claim.fence.generation, claim.recovered), (2, True), "the next claim")
    expect(claim.input_json, b"7", "the input of a run that goes on")
    await one.store.release_run(fence)
    expect(await one.state(), RunState.RUNNING, "a run that somebody else gave back")
    await other.store.release_run(claim.fence, locked=True)
    (claim,) = await one.store.claim_runs(one.holder, SERVED, 9)
    await one.store.end_run(claim.fence, RunEnd(RunState.COMPLETED, b"1"))
    attempts = await one.store.list_attempts("run-1")
    told = [(attempt.generation, attempt.ending) for attempt in attempts]
    expect(told, [(1, "released"), (2, "locked"), (3, "completed")], "the attempts of a run")


async def a_cancellation_reaches_a_run_wherever_it_is(scene: Scene) -> None:
    """At once where nobody executes it, and otherwise as it is given back or would be parked."""
    process = await scene.process()
    store = process.store
    await store.start_run(new_run("waits"), None)
    fences = {name: await process.start(name) for name in ("back", "parked", "done", "ended")}
    await store.end_run(fences["ended"], RunEnd(RunState.COMPLETED, b"1"))
    for name in ("back", "parked", "done"):
        row = await store.request_cancel(name)
        told = row and (row.state, row.cancel_requested)
        expect(told, (RunState.CANCELLING, True), "a run whose end was asked for")
    expect(sorted(await store.read_cancels(process.holder)), ["back", "done", "parked"], "cancels")
    await store.request_cancel("waits")
    await store.release_run(fences["back"])
    end = RunEnd(RunState.NEEDS_ATTENTION, problem=_PROBLEM)
    expect(await store.end_run(fences["parked"], end), "cancelled", "parking what is cancelled")
    expect(
        await store.end_run(fences["done"], RunEnd(RunState.COMPLETED, b"1")),
        "completed",
        "the end of what was faster than its cancellation",
    )
    for name in ("waits", "back", "parked"):
        row = await process.run(name)
        expect((row.state, row.finished_at is not None), ("cancelled", True), "a cancelled run")
    expect(await store.request_cancel("none"), None, "cancelling an unknown run")
    row = await store.request_cancel("ended")
    expect(row and row.state, RunState.COMPLETED, "a run that had ended")


async def what_stopped_is_resumed(scene: Scene) -> None:
    """A run that failed or needs attention waits again, without its problem; no other does."""
    process = await scene.process()
    for state in (RunState.FAILED, RunState.NEEDS_ATTENTION, RunState.CANCELLED):
        fence = await process.start(state.value)
        await process.store.end_run(fence, RunEnd(state, problem=_PROBLEM))
        row = await process.store.resume_run(state.value)
        goes_on = state is not RunState.CANCELLED
        expect(row and row.state, RunState.PENDING if goes_on else state, f"{state}, resumed")
        if goes_on and row is not None:
            expect((row.problem, row.finished_at), (None, None), "a resumed run")
            expect(await process.claim(), [state.value], "claims of a resumed run")
    expect(await process.store.resume_run("none"), None, "resuming an unknown run")


async def a_run_is_not_parked_for_what_is_settled_already(scene: Scene) -> None:
    """The word on its effect may come while the run has other things under way."""
    process = await scene.process()
    receipt = await process.attempted(ReceiptState.AMBIGUOUS)
    cause = EffectAmbiguous(receipt.operation_key, receipt.target, "no reply", needs_person=True)
    end = RunEnd(RunState.NEEDS_ATTENTION, problem=_PROBLEM, cause=cause)
    expect(await process.store.end_run(await process.start("early"), end), end.state, "parking")
    await process.store.settle_effect(settlement(receipt, Move.COMPLETE))
    late = await process.start("late")
    expect(await process.store.end_run(late, end), RunState.PENDING, "parking after the word")
    row = await process.run("late")
    expect((row.problem, row.finished_at, row.holder), (None, None, None), "a run that goes on")


async def a_write_of_one_process_is_noticed_by_others(scene: Scene) -> None:
    """`changed` may say too often that something was written, and never too seldom."""
    one, other = await scene.process(), await scene.process()
    for number in range(2):
        seen = len(await other.store.list_runs(state=None, limit=99))
        other.store.changed()
        await one.start(f"run-{number}")

        async def noticed() -> bool:
            return other.store.changed()

        await soon(noticed, "a run that another process wrote")
        found = len(await other.store.list_runs(state=None, limit=99))
        expect(found, seen + 1, "runs, once it was noticed")
