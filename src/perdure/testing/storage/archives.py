from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.activity import Rest
from perdure.effects.receipt import ReceiptState
from perdure.engine.archive import (
    IMPORTED,
    RunArchive,
    decode_archive,
    export_run,
)
from perdure.engine.store import NewRun, RunProblem, RunState, RunStore
from perdure.errors import RunConflict, RunErased
from perdure.fence import Fence
from perdure.journal.store import JournalRow, TimerRow
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import Process, Scene, message
from perdure.testing.storage.upkeep import (
    collected,
    emptied,
    everything,
    exported,
    placed,
    settle,
    taken_in,
)
from perdure.testing.storage.work import talk, worked

_PROBLEM: Final = RunProblem("Code", "Type", "with an \U0001f980", "line\n" * 99)


async def a_run_that_ended_comes_back_to_the_byte(scene: Scene) -> None:
    """Whatever it ended as, with all that it recorded and all that is known of its effects."""
    process, other = await scene.process(), await scene.process()
    files: dict[str, bytes] = {}
    for state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
        fence = await worked(process, f"run-{state}")
        if state is RunState.COMPLETED:
            await process.end(fence, state, output_json=talk(8), executed=5, replayed=2)
        elif state is RunState.FAILED:
            await process.end(fence, state, problem=_PROBLEM)
        else:
            await process.end(fence, state)
        files[fence.run_id] = await exported(process.store, fence.run_id)
    await process.store.retire_worker(process.holder)
    await emptied(other)
    for run_id, file in files.items():
        ensure(await taken_in(other.store, file), f"the run {run_id} was not there")
        again = await exported(process.store, run_id)
        ensure(again == file, f"the run {run_id} is exported again as the same bytes")
        archive = decode_archive(file)
        await _holds(process.store, archive)
        (attempt,) = await process.store.list_attempts(run_id)
        expect(attempt, archive.attempts[0], "the claim of a run that was imported")


async def a_run_that_waits_goes_on_where_a_person_lets_it(scene: Scene) -> None:
    """Nobody claims it before; its delay goes on, and what was in flight is ambiguous."""
    process, other = await scene.process(), await scene.process()
    fence = await worked(process, "run-1")
    await process.attempted_in(fence, ReceiptState.IN_FLIGHT, 9)
    with refusal(RunConflict, "exporting what is executed"):
        await export_run(process.store, "run-1")
    await process.store.release_run(fence)
    before = await process.store.read_journal("run-1")
    file = await exported(process.store, "run-1")
    await process.store.request_cancel("run-1")
    await emptied(other)
    ensure(await taken_in(other.store, file), "a run that waited was not there")
    row = await other.run()
    told = (row.state, row.problem and row.problem.code, row.generation, row.finished_at)
    expect(told, (RunState.NEEDS_ATTENTION, IMPORTED, 1, None), "a run that waited, imported")
    expect(await other.claim(), [], "claims of a run that waits for a person")
    receipts = await other.store.list_receipts(ambiguous_only=True, limit=9, run_id="run-1")
    expect([receipt.ordinal for receipt in receipts], [9, 3], "effects of which nobody knows")
    after = await other.store.read_journal("run-1")
    expect(_by_key(after.timers), _by_key(before.timers), "the delays of a run")
    expect(dict(after.begun), dict(before.begun), "the effects that a run has begun")
    expect(_by_key(after.rows), _by_key(before.rows), "the records of a run")
    resumed = await other.store.resume_run("run-1")
    expect(resumed and resumed.state, RunState.PENDING, "an imported run, resumed")
    (claim,) = await other.store.claim_runs(other.holder, (("work", 1),), 9)
    told = (claim.fence.generation, claim.input_json, claim.recovered)
    expect(told, (2, talk(6), True), "the claim of an imported run")
    await other.append(claim.fence, "later", 1)
    await other.end(claim.fence)


async def a_run_that_was_put_away_waits_for_a_person(scene: Scene) -> None:
    """It came with its deadline and its inbox, and whoever resumes it finds both."""
    process, other = await scene.process(), await scene.process()
    for run_id, awaits in (("sleeps", frozenset[str]()), ("awaits", frozenset({"mail"}))):
        run = NewRun(run_id, "work", 1, b"null", 5.0, 1e10, "its parent")
        started = await process.store.start_run(run, process.holder)
        assert started.claimed is not None
        fence = started.claimed.fence
        await process.wait_for(fence, "mail")
        for message_id in ("m-2", "m-1"):
            await process.store.send_message(message(run_id, message_id))
        await process.take(fence, "news", 1)
        rest = Rest(1e9, awaits)
        before = await process.store.park_run(fence, rest, executed=0, replayed=0)
        ensure(not before.settled, "it waits for a time or a message")
        file = await exported(process.store, run_id)
        messages = await process.store.list_messages(run_id)
        await process.store.request_cancel(run_id)
        await emptied(other)
        ensure(await taken_in(other.store, file), "a run that was put away was not there")
        row = await other.run(run_id)
        told = (row.state, row.wake_at, row.deadline_at, row.parent)
        expect(told, (RunState.NEEDS_ATTENTION, None, 5.0 + 1e10, "its parent"), "an imported run")
        expect(await other.store.list_messages(run_id), messages, "the messages of a run")
        await other.store.send_message(message(run_id, "m-3", name="mail"))
        expect(await other.store.wake_runs(), 0, "runs that are woken")
        expect(await other.state(run_id), RunState.NEEDS_ATTENTION, "a run that was told")
        ensure(not await taken_in(other.store, await exported(other.store, run_id)), "it is there")
        await other.store.resume_run(run_id)
        expect(await other.claim(), [run_id], "an imported run, resumed")
        found = await other.store.next_message(run_id, "news")
        expect(found, messages[1], "the message that was not taken")
        await other.store.request_cancel(run_id)
        await other.end(Fence(run_id, other.holder, 2), RunState.CANCELLED)


async def a_run_that_is_there_is_not_written_again(scene: Scene) -> None:
    """The very same changes nothing, and one that holds something else is refused."""
    process, other = await scene.process(), await scene.process()
    fence = await worked(process, "run-1")
    await process.end(fence)
    file = await exported(process.store, "run-1")
    await emptied(other)
    taken = await asyncio.gather(*(taken_in(each.store, file) for each in (process, other, other)))
    expect(sorted(taken), [False, False, True], "imports of one run at once")
    archive = decode_archive(file)
    for changed in (
        msgspec.structs.replace(archive.run, output_json=b"2"),
        msgspec.structs.replace(archive.run, version=2),
    ):
        with refusal(RunConflict, "importing another run of the same id"):
            await placed(other.store, msgspec.structs.replace(archive, run=changed))
    fewer = msgspec.structs.replace(archive, records=archive.records[:-1])
    with refusal(RunConflict, "importing a run with other records"):
        await placed(other.store, fewer)
    ensure(await exported(process.store, "run-1") == file, "the run is as it was")


async def a_receipt_that_is_there_is_never_replaced(scene: Scene) -> None:
    """Nor one that was erased: a run that brings another is refused, and none of it is written."""
    process = await scene.process()
    fence = await worked(process, "run-1")
    await process.end(fence)
    file = await exported(process.store, "run-1")
    await settle(process)
    await collected(process.store, everything(process.store, "runs"))
    kept = await process.store.list_receipts(ambiguous_only=False, limit=9)
    expect(len(kept), 3, "receipts that outlive their run")
    await _refused(process, file, "importing a receipt that has changed since")
    left = await process.store.list_receipts(ambiguous_only=False, limit=9)
    expect(left, kept, "the receipts after an import that is refused")
    await process.store.erase_receipts("run-1", by="ada", why="so")
    await _refused(process, file, "importing receipts that were erased")
    expect(await process.store.list_receipts(ambiguous_only=False, limit=9), [], "receipts")


async def receipts_that_outlived_their_run_are_its_own_again(scene: Scene) -> None:
    """A run whose receipts are there as they were exported is taken in; an erased run is not."""
    process = await scene.process()
    fence = await process.start()
    await process.attempted_in(fence, ReceiptState.COMPLETED)
    await process.end(fence)
    file = await exported(process.store, "run-1")
    await collected(process.store, everything(process.store, "runs"))
    kept = await process.store.list_receipts(ambiguous_only=False, limit=9)
    expect(len(kept), 1, "receipts that outlive their run")
    ensure(await taken_in(process.store, file), "a run was not there")
    ensure(await exported(process.store, "run-1") == file, "the run is as it was")
    await process.store.erase_run("run-1", by="ada", why="so")
    tombstone = await process.run()
    with refusal(RunErased, "importing a run that was erased"):
        await taken_in(process.store, file)
    expect(await process.run(), tombstone, "the tombstone of a run")


async def what_comes_shares_beginnings_with_what_is_there(scene: Scene) -> None:
    """Each is whole for as long as it is there, whichever goes first."""
    process = await scene.process()
    for run_id in ("run-1", "run-2", "run-3"):
        await process.end(await worked(process, run_id), output_json=talk(8))
    files = {run_id: await exported(process.store, run_id) for run_id in ("run-1", "run-2")}
    await settle(process)
    await collected(process.store, everything(process.store, "receipts"))
    before = (await process.run("run-3")).finished_at
    expiry = msgspec.structs.replace(everything(process.store, "runs"), runs=before)
    expect((await collected(process.store, expiry))["runs"], 2, "runs that are gone")
    for file in files.values():
        await taken_in(process.store, file)
    await process.store.erase_run("run-3", by="ada", why="so")
    for run_id, file in files.items():
        await _holds(process.store, decode_archive(file))
        await settle(process)
        await process.store.erase_run(run_id, by="ada", why="so")


def _by_key(rows: Sequence[JournalRow | TimerRow]) -> dict[tuple[str, int], object]:
    return {(row.step_id, row.sequence): row for row in rows}


async def _refused(process: Process, file: bytes, what: str) -> None:
    """Expect that nothing of a run is written whose receipts are not those that are there."""
    with refusal(RunConflict, what):
        await taken_in(process.store, file)
    expect(await process.store.read_run("run-1"), None, "a run that was refused")
    journal = await process.store.read_journal("run-1")
    inbox = await process.store.list_messages("run-1")
    left = (len(journal.rows), len(journal.timers), len(inbox))
    expect(left, (0, 0, 0), "what is left of a run that was refused")


async def _holds(store: RunStore, archive: RunArchive) -> None:
    """Expect that a store has the exact bytes of all that an archive has."""
    run_id = archive.run.run_id
    expect(await store.read_run_input(run_id), archive.input, "what a run was given")
    row = await store.read_run(run_id)
    expect(row and row.output_json, archive.run.output_json, "what a run came to")
    for record in archive.records:
        key = (record.operation.step_id, record.operation.sequence)
        found = await store.read_input(run_id, *key), await store.read_payload(run_id, *key)
        expect(found, (record.input, record.payload), "a record that was imported")
