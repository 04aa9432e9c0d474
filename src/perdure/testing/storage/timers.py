from __future__ import annotations

from perdure.engine.store import RunEnd, RunState
from perdure.journal.invocation import SEQUENCE_LIMIT, OperationKind
from perdure.journal.store import TimerRow
from perdure.testing.storage.expecting import expect
from perdure.testing.storage.scene import SERVED, Process, Scene, delay


async def a_delay_comes_back_as_it_was_begun(scene: Scene) -> None:
    """Whoever executes the run next waits for what is left of it."""
    one, other = await scene.process(), await scene.process()
    fence = await one.start()
    for sequence in (1, SEQUENCE_LIMIT):
        invocation, digest = delay(fence, sequence, b'{"seconds":%d}' % (sequence % 97))
        await one.store.begin_timer(fence, invocation, digest, 1e9 + 0.25)
    await one.store.release_run(fence)
    timers = await _timers(other)
    expect([timer.sequence for timer in timers], [1, SEQUENCE_LIMIT], "the delays of a run")
    for timer in timers:
        invocation, digest = delay(fence, timer.sequence, b'{"seconds":%d}' % (timer.sequence % 97))
        told = (timer.step_id, timer.kind, timer.handler_id)
        expect(told, ("sleep", OperationKind.RETRY_DELAY, "perdure.sleep"), "a delay")
        expect((timer.input_json, timer.input_sha256), (invocation.input_json, digest), "its input")
        expect(timer.wake_at, 1e9 + 0.25, "when it ends")


async def the_record_of_a_delay_ends_it_and_no_other(scene: Scene) -> None:
    """A record of another kind under the same key ends none."""
    process = await scene.process()
    fence = await process.start()
    for sequence in (1, 2, 3):
        await process.store.begin_timer(fence, *delay(fence, sequence), 5.0)
    kind = OperationKind.RETRY_DELAY
    await process.append(fence, "sleep", 2, document=b"{}", kind=kind)
    await process.append(fence, "sleep", 3, document=b"{}")
    await process.append(fence, "other", 1, document=b"{}", kind=kind)
    expect([timer.sequence for timer in await _timers(process)], [1, 3], "the delays that are left")


async def the_delays_of_other_runs_are_their_own(scene: Scene) -> None:
    """Also those of the next claim of a run: a delay outlives the claim that began it."""
    process = await scene.process()
    fence = await process.start()
    beside = await process.start("run-2")
    for each in (fence, beside):
        await process.store.begin_timer(each, *delay(each), 5.0)
    await process.store.release_run(fence)
    (claim,) = await process.store.claim_runs(process.holder, SERVED, 9)
    kind = OperationKind.RETRY_DELAY
    await process.append(claim.fence, "sleep", 1, document=b"{}", kind=kind)
    expect(await _timers(process), [], "the delays of a run that waited")
    expect(len(await _timers(process, "run-2")), 1, "the delays of another run")
    end = await process.store.end_run(claim.fence, RunEnd(RunState.COMPLETED, b"1"))
    expect(end, RunState.COMPLETED, "the end of a run that waited")


async def _timers(process: Process, run_id: str = "run-1") -> list[TimerRow]:
    timers = (await process.store.read_journal(run_id)).timers
    return sorted(timers, key=lambda timer: timer.sequence)
