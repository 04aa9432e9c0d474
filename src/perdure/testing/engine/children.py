from __future__ import annotations

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import RunCancelled, RunFailed
from perdure.testing.engine.scene import Gate, Register, Scene, end_of, stands
from perdure.testing.storage.expecting import ensure, expect


def _family(gate: Gate, after: Gate | None = None) -> Register:
    """Return what registers a run that starts another one and says what became of it.

    The child is held at the gate, and the parent after it has started the child.
    """

    def serving(app: App) -> None:
        @app.run(version=1)
        async def child(context: Context, text: str) -> str:
            await gate(context.run_id)
            if text == "fail":
                raise KeyError("a child")
            return text.upper()

        @app.run(version=1)
        async def parent(context: Context, text: str) -> str:
            started = await context.start_child(child, text)
            if after is not None:
                await after(started.run_id)
            try:
                return f"{started.run_id} said {await started.result()}"
            except RunFailed as failed:
                return f"{failed.run_id} failed with {failed.code}"
            except RunCancelled as cancelled:
                return f"{cancelled.run_id} was cancelled"

    return serving


async def the_end_of_a_child_wakes_its_parent(scene: Scene) -> None:
    """Which is nothing but rows until then; another worker may execute either."""
    gate = Gate()
    workers = [await scene.worker(_family(gate)) for _ in range(2)]
    outsider = await scene.outsider(_family(gate))
    handle = await outsider.start("parent", "hello", run_id=scene.name())
    await gate.reached()
    row = await stands(outsider, handle.run_id, RunState.SUSPENDED)
    expect((row.holder, row.wake_at), (None, None), "a parent that waits")
    child = gate.came[0]
    expect((await outsider.find(child)).parent, handle.run_id, "the parent of a child")
    gate.open()
    expect(await end_of(workers[0].handle(handle.run_id)), f"{child} said HELLO", "the result")
    expect(await end_of(workers[1].handle(child)), "HELLO", "the result of the child")


async def a_child_is_started_once(scene: Scene) -> None:
    """Also where the execution that started it is cut short."""
    gate, after = Gate(), Gate()
    gate.open()
    one = await scene.worker(_family(gate, after))
    handle = await one.start("parent", "hello", run_id=scene.name())
    await after.reached()
    await end_of(one.handle(after.came[0]))
    await scene.close(one)
    after.open()
    other = await scene.worker(_family(gate, after))
    child = after.came[0]
    expect(await end_of(other.handle(handle.run_id)), f"{child} said HELLO", "the result")
    expect({*after.came}, {child}, "the children that its executions see")
    expect(gate.came, [child], "the children that were executed")


async def a_child_that_does_not_complete_says_so(scene: Scene) -> None:
    """Its parent is told how it ended."""
    gate = Gate()
    app = await scene.worker(_family(gate))
    failing = await app.start("parent", "fail", run_id=scene.name("failing"))
    await gate.reached()
    leaving = await app.start("parent", "leave", run_id=scene.name("leaving"))
    await gate.reached(2)
    failed, left = gate.came
    await app.cancel(left)
    expect(await end_of(leaving), f"{left} was cancelled", "a parent whose child was cancelled")
    gate.open()
    expect(await end_of(failing), f"{failed} failed with KeyError", "a parent whose child failed")


async def a_child_goes_on_without_its_parent(scene: Scene) -> None:
    """Which has completed and waits for nobody."""
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def child(_: Context) -> str:
            await gate()
            return "done"

        @app.run(version=1)
        async def parent(context: Context) -> str:
            return (await context.start_child(child)).run_id

    app = await scene.worker(serving)
    run_id = await end_of(await app.start("parent", run_id=scene.name()))
    await gate.reached()
    gate.open()
    expect(await end_of(app.handle(run_id)), "done", "the result of the child")


async def a_cancel_goes_down_the_tree(scene: Scene) -> None:
    """To children that wait, and to those that are executed; others go on."""
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def nest(context: Context, depth: int) -> None:
            if depth == 0:
                await gate(context.run_id)
            else:
                await (await context.start_child(nest, depth - 1)).result()

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    handle = await worker.start("nest", 2, run_id=scene.name())
    other = await worker.start("nest", 0, run_id=scene.name("other"))
    await gate.reached(2)
    (deepest,) = (run_id for run_id in gate.came if run_id != other.run_id)
    middle = (await outsider.find(deepest)).parent
    ensure(middle is not None, "a child has a parent")
    await outsider.cancel(handle.run_id)
    for run_id in (handle.run_id, str(middle), deepest):
        await stands(outsider, run_id, RunState.CANCELLED)
    expect(await other.status(), RunState.RUNNING, "a run that is none of them")
    gate.open()
    await end_of(other)
