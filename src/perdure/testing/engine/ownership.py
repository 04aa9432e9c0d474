from __future__ import annotations

import asyncio

from perdure.app import App
from perdure.approvals import Approve
from perdure.context import Context
from perdure.functions import operation
from perdure.testing.engine.scene import Gate, Scene, asked, end_of, taken_away, until
from perdure.testing.storage.expecting import ensure, expect


async def a_run_goes_on_elsewhere_when_its_worker_closes(scene: Scene) -> None:
    """With another worker that was there all along."""
    holders: list[str | None] = []
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> int:
            holders.append((await app.find(context.run_id)).holder)
            await gate()
            return len(gate.came)

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await scene.worker(serving)
    await scene.close(one)
    await gate.reached(2)
    gate.open()
    expect(await end_of(other.handle(handle.run_id)), 2, "the result")
    ensure(None not in holders and len({*holders}) == 2, f"two workers own it in turn: {holders}")


async def who_lost_a_run_records_nothing_more(scene: Scene) -> None:
    """What it was about to record is not there for whoever goes on."""
    gate, left = Gate(), Gate()
    left.open()

    @operation(read_only=True)
    async def count() -> int:
        await gate()
        return len(gate.came)

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> int:
            try:
                return await context.call(count)
            finally:
                await left()

    outsider = await scene.outsider(serving)
    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    await taken_away(outsider, handle.run_id)
    gate.open()
    # It has tried to record what its operation came to.
    await left.reached()
    await scene.close(one)
    await scene.worker(serving)
    expect(await end_of(outsider.handle(handle.run_id)), 2, "the result")


async def who_lost_a_run_does_not_complete_it(scene: Scene) -> None:
    """It belongs to whoever goes on."""
    await _ended_too_late(scene, fails=False)


async def who_lost_a_run_does_not_fail_it(scene: Scene) -> None:
    """Whatever its code raises."""
    await _ended_too_late(scene, fails=True)


async def who_lost_a_run_takes_nothing_that_came(scene: Scene) -> None:
    """It is there for whoever goes on."""
    held, later, left = Gate(), Gate(), Gate()
    left.open()

    @operation(read_only=True)
    async def hold() -> None:
        await held()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> bool:
            if left.came:
                await later()
            try:
                # What is held keeps the wait beside it in memory.
                waiting = context.approval("pay", {})
                answer, _ = await asyncio.gather(waiting, context.call(hold))
                return isinstance(answer, Approve)
            finally:
                await left()

    outsider = await scene.outsider(serving)
    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    item = await asked(outsider, handle.run_id)
    await held.reached()
    await taken_away(outsider, handle.run_id)
    await outsider.resolve(handle.run_id, item.item_id, Approve(), by="ada")
    # It has tried to take the answer.
    await left.reached()
    expect([each.taken_by for each in await outsider.messages(handle.run_id)], [None], "who has it")
    held.open()
    later.open()
    await scene.close(one)
    await scene.worker(serving)
    ensure(await end_of(outsider.handle(handle.run_id)), "whoever goes on has the answer")


async def a_run_is_executed_by_one_worker_at_a_time(scene: Scene) -> None:
    """However often its workers come and go."""
    inside: list[App] = []
    most: list[int] = []
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(_: Context) -> str:
            inside.append(app)
            most.append(len(inside))
            try:
                await gate()
            finally:
                inside.remove(app)
            return "done"

        @app.run(version=1)
        async def other(_: Context) -> None:
            return None

    outsider = await scene.outsider(serving)
    for _ in range(2):
        await scene.worker(serving)
    handle = await outsider.start("work", run_id=scene.name())
    for times in range(1, 4):
        await gate.reached(times)
        await scene.worker(serving)
        # Whoever executes that has looked at what waits.
        await end_of(await outsider.start("other", run_id=scene.name(f"other{times}")))
        await scene.close(inside[-1])
    gate.open()
    expect(await end_of(handle), "done", "the result")
    expect({*most}, {1}, "how many executed it at once")


async def _ended_too_late(scene: Scene, *, fails: bool) -> None:
    """Have code come to its end after its run was taken away, and another one go on."""
    gate = Gate()
    over: list[int] = []

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(_: Context) -> int:
            mine = len(gate.came) + 1
            await gate()
            over.append(mine)
            if fails and mine == 1:
                raise ZeroDivisionError
            return mine

    outsider = await scene.outsider(serving)
    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    await taken_away(outsider, handle.run_id)
    gate.open()
    await until(lambda: bool(over), "the code of who lost a run ends")
    await scene.close(one)
    await scene.worker(serving)
    expect(await end_of(outsider.handle(handle.run_id)), 2, "the result")
