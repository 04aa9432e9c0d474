from __future__ import annotations

import asyncio

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import RunCancelled, RunFailed
from perdure.functions import operation
from perdure.testing.engine.scene import WAITING, Gate, Register, Scene, end_of, stands, until
from perdure.testing.storage.expecting import ensure, expect, refusal


def _working(gate: Gate, told: list[str]) -> Register:
    """Return what registers a run that is held in an operation, and one that waits."""

    @operation(read_only=True)
    async def act() -> str:
        try:
            await gate()
        except asyncio.CancelledError:
            told.append("operation")
            raise
        return "acted"

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                return await context.call(act)
            except asyncio.CancelledError:
                told.append("run")
                raise

        @app.run(version=1)
        async def wait(context: Context, seconds: float) -> None:
            await (context.sleep(seconds) if seconds else context.wait_for("news"))

    return serving


async def a_run_that_acts_is_told_and_ends(scene: Scene) -> None:
    """Its operation and its code see a cancellation; nothing is executed again."""
    gate, told = Gate(), list[str]()
    worker = await scene.worker(_working(gate, told))
    outsider = await scene.outsider(_working(gate, told))
    handle = await worker.start("work", run_id=scene.name())
    await gate.reached()
    expect((await outsider.cancel(handle.run_id)).state, RunState.CANCELLING, "a run that acts")
    for app in (worker, outsider):
        with refusal(RunCancelled, "a run that was cancelled"):
            await end_of(app.handle(handle.run_id))
    expect(told, ["operation", "run"], "who is told")
    expect((await outsider.find(handle.run_id)).state, RunState.CANCELLED, "where it stands")
    expect(len(gate.came), 1, "how often it was executed")


async def a_run_that_nobody_executes_is_cancelled_at_once(scene: Scene) -> None:
    """One that sleeps, one that is suspended, and one that no worker has taken yet."""
    gate, told = Gate(), list[str]()
    outsider = await scene.outsider(_working(gate, told))
    waiting = await outsider.start("work", run_id=scene.name("new"))
    expect((await outsider.cancel(waiting.run_id)).state, RunState.CANCELLED, "one not begun")
    worker = await scene.worker(_working(gate, told))
    for seconds in (3600.0, 0.0):
        handle = await worker.start("wait", seconds, run_id=scene.name(f"wait-{seconds:.0f}"))
        row = await stands(outsider, handle.run_id, *WAITING)
        expect((await outsider.cancel(handle.run_id)).state, RunState.CANCELLED, row.state)
        with refusal(RunCancelled, "a run that was cancelled"):
            await end_of(handle)
    with refusal(RunCancelled, "a run that was cancelled before it began"):
        await end_of(worker.handle(waiting.run_id))
    expect(gate.came, [], "what was executed")


async def a_cancel_outlives_the_worker_that_was_told(scene: Scene) -> None:
    """Nobody goes on with the run."""
    gate, told = Gate(), list[str]()
    one = await scene.worker(_working(gate, told))
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    outsider = await scene.outsider(_working(gate, told))
    await asyncio.gather(outsider.cancel(handle.run_id), scene.close(one))
    await scene.worker(_working(gate, told))
    with refusal(RunCancelled, "a run that was cancelled"):
        await end_of(outsider.handle(handle.run_id))
    expect(len(gate.came), 1, "how often it was executed")


async def a_run_that_has_ended_stays_as_it_is(scene: Scene) -> None:
    """Its result is there after a cancel too."""
    gate, told = Gate(), list[str]()
    gate.open()
    app = await scene.worker(_working(gate, told))
    handle = await app.start("work", run_id=scene.name())
    expect(await end_of(handle), "acted", "the result")
    expect(await handle.cancel(), RunState.COMPLETED, "where it stands after a cancel")
    expect(await end_of(handle), "acted", "the result after a cancel")


async def a_run_that_takes_too_long_fails(scene: Scene) -> None:
    """Whether it acts, waits, or nobody has executed it yet."""
    gate, told = Gate(), list[str]()
    outsider = await scene.outsider(_working(gate, told))
    new = await outsider.start("work", run_id=scene.name("new"), deadline_seconds=0.01)
    deadline_at = (await outsider.find(new.run_id)).deadline_at or 0.0
    # Clocks of the store differ a little from App to App.
    await until(lambda: outsider.store.clock.now() > deadline_at + 0.1, "a deadline is over")
    worker = await scene.worker(_working(gate, told))
    await _is_late(new.run_id, worker)
    expect(gate.came, [], "what was executed too late")
    acting = await worker.start("work", run_id=scene.name("acting"), deadline_seconds=0.2)
    waiting = await worker.start("wait", 0.0, run_id=scene.name("waiting"), deadline_seconds=0.2)
    await _is_late(acting.run_id, outsider)
    await _is_late(waiting.run_id, outsider)
    # Where it takes long to begin, nothing had begun.
    expect(told.count("operation"), len(gate.came), "how many operations are told")


async def a_child_has_no_more_time_than_its_parent(scene: Scene) -> None:
    """Whatever it is given."""
    ends: list[float | None] = []

    def serving(app: App) -> None:
        @app.run(version=1)
        async def child(context: Context) -> None:
            ends.append(context.deadline.timestamp() if context.deadline else None)

        @app.run(version=1)
        async def parent(context: Context) -> None:
            assert context.deadline is not None
            ends.append(context.deadline.timestamp())
            await (await context.start_child(child)).result()
            await (await context.start_child(child, deadline_seconds=7200)).result()

    app = await scene.worker(serving)
    await end_of(await app.start("parent", run_id=scene.name(), deadline_seconds=3600))
    latest = max(end or float("inf") for end in ends)
    # The clock of the store may be another one than that which says how much time is left.
    ensure(latest - (ends[0] or 0.0) < 5.0, f"nobody has more time: {ends}")


async def _is_late(run_id: str, app: App) -> None:
    try:
        await end_of(app.handle(run_id))
    except RunFailed as failed:
        expect(failed.code, "DeadlineExceeded", f"why {run_id} failed")
    else:
        raise AssertionError(f"{run_id} ended although its time was over")
