from __future__ import annotations

from perdure.engine.store import RunProblem, RunState
from perdure.engine.turns import EndedTurn, TurnRow
from perdure.errors import InvalidSessionArgument
from perdure.fence import Fence
from perdure.session import headers
from perdure.testing.storage.expecting import expect
from perdure.testing.storage.scene import Process, Scene
from perdure.testing.storage.talking import append, changed, draft, said, streamed
from perdure.testing.storage.upkeep import collected, everything

_FAILED = {"problem": RunProblem("ValueError", "ValueError", "no")}


async def what_a_run_answers_is_noted(scene: Scene) -> None:
    """Once, for every process; the turns of a session are those of it alone."""
    process, other = await scene.process(), await scene.store()
    turns = [TurnRow(f"run-{number}", "talk", f"e-{number}") for number in (2, 1)]
    elsewhere = TurnRow("run-3", "other talk", "e-1")
    for turn in (*turns, elsewhere):
        await process.start(turn.run_id)
        await process.store.note_turn(turn)
        await other.note_turn(turn)
    for turn in (*turns, elsewhere):
        expect(await other.read_turn(turn.run_id), turn, f"what {turn.run_id} answers")
    expect(await other.read_turn("run-4"), None, "what no run answers")
    expect([*await other.list_turns("talk")], turns[::-1], "the turns of a session")
    expect([*await other.list_turns("none")], [], "the turns of no session")


async def an_end_is_there_until_it_is_told(scene: Scene) -> None:
    """Of a run that has ended, in whichever way, and not of one that goes on or waits."""
    process = await scene.process()
    store = process.store
    await _turn(process, "goes-on")
    waits = await _turn(process, "waits")
    await process.end(waits, RunState.NEEDS_ATTENTION, **_FAILED)
    expect(await _ended(process), {}, "ends before there are any")
    ways = {
        RunState.COMPLETED: {},
        RunState.FAILED: _FAILED,
        RunState.CANCELLED: {},
    }
    for state, how in ways.items():
        fence = await _turn(process, state.value)
        await process.end(fence, state, **how)
    expect(len(await store.ended_turns(2)), 2, "ends up to a limit")
    for state in ways:
        turn = TurnRow(state.value, "talk", "e")
        code = "ValueError" if state is RunState.FAILED else None
        expect((await _ended(process)).get(state.value), EndedTurn(turn, state, 1, code), "an end")
        await store.close_turn(state.value, 1)
    expect(await _ended(process), {}, "ends that were told")
    await store.note_turn(TurnRow("completed", "talk", "e"))
    expect([*await _ended(process)], ["completed"], "the end of one that was noted again")


async def a_run_that_goes_on_has_not_been_told_of(scene: Scene) -> None:
    """Who tells of an end that a person has taken back, closes nothing of the next one."""
    process = await scene.process()
    store = process.store
    await process.end(await _turn(process, "run-1"), RunState.FAILED, **_FAILED)
    await store.resume_run("run-1")
    await store.close_turn("run-1", 1)
    expect(await _ended(process), {}, "the end of a run that was resumed")
    expect(await process.claim(), ["run-1"], "what is claimed")
    await store.close_turn("run-1", 1)
    await process.end(Fence("run-1", process.holder, 2))
    await store.close_turn("run-1", 1)
    expect([turn.generation for turn in (await _ended(process)).values()], [2], "the second end")


async def a_turn_goes_with_its_run(scene: Scene) -> None:
    """When that is erased, or collected."""
    process = await scene.process()
    for run_id in ("erased", "collected"):
        await process.end(await _turn(process, run_id))
    await process.store.erase_run("erased", by="ada", why="asked", rewrite=False)
    expect([*await _ended(process)], ["collected"], "ends after an erasure")
    await collected(process.store, everything(process.store))
    expect(await _ended(process), {}, "ends after a collection")
    for run_id in ("erased", "collected"):
        expect(await process.store.read_turn(run_id), None, f"what {run_id} answers")
    expect([*await process.store.list_turns("talk")], [], "the turns of the session")


async def a_run_that_is_begun_again_changes_its_own_messages(scene: Scene) -> None:
    """A run of a session may have a number behind the id of the run whose fence it is under."""
    process = await scene.process()
    fence = await process.start("run-1")
    for run_id, allowed in (("run-1.2", True), ("run-1.x", False), ("run-12", False)):
        (serial,) = await said(process.store, streamed(f"m {run_id}", run_id=run_id), fence=fence)
        write = append(serial, "on", fence=fence)
        if allowed:
            await changed(process.store, write)
        else:
            (outcome,) = await process.store.write_session([write])
            expect(type(outcome), InvalidSessionArgument, f"an append to what is of {run_id}")
    end = draft("end", name=headers.AI_STEP_END, transport={headers.RUN_ID: "run-1.2"})
    await said(process.store, end, fence=fence)
    page = await process.store.session_page("talk", None, 9)
    expect([each.data for each in page.messages][-1], "on", "the message of the run")


async def _turn(process: Process, run_id: str) -> Fence:
    fence = await process.start(run_id)
    await process.store.note_turn(TurnRow(run_id, "talk", "e"))
    return fence


async def _ended(process: Process) -> dict[str, EndedTurn]:
    return {ended.turn.run_id: ended for ended in await process.store.ended_turns(9)}
