from __future__ import annotations

from collections import Counter
from typing import Any

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import UnknownQueue
from perdure.testing.engine.scene import Gate, Register, Scene, end_of, stands
from perdure.testing.storage.expecting import expect, refusal


class _Room:
    """Runs that stay at a gate, and how many of each key were there at once."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @property
    def entered(self) -> list[str]:
        """Who was here, in the order of coming."""
        return self.gate.came

    async def stay(self, who: str) -> str:
        """Be inside until the gate is open."""
        key = who.partition(" ")[0]
        self.inside[key] += 1
        self.most[key] = max(self.most[key], self.inside[key])
        try:
            await self.gate(who)
        finally:
            self.inside[key] -= 1
        return who

    def serving(self, **limits: Any) -> Register:
        """Return what registers a run that stays, one that does not, and the queue `mail`."""

        def serving(app: App) -> None:
            @app.run(version=1)
            async def work(_: Context, who: str) -> str:
                return await self.stay(who)

            @app.run(version=1)
            async def pass_by(_: Context) -> None:
                pass

            app.queue("mail", **limits)

        return serving


async def a_queue_lets_through_what_its_limits_say(scene: Scene) -> None:
    """Over all workers together, in all and by key; every run has its turn."""
    room = _Room()
    serving = room.serving(concurrency=2, key_concurrency=1)
    outsider = await scene.outsider(serving)
    apps = [await scene.worker(serving) for _ in range(2)] + [outsider]
    handles = [
        await apps[number % 3].start("work", f"{key} {number}", queue="mail", key=key)
        for number in range(3)
        for key in ("a", "b", "c")
    ]
    await room.gate.reached(2)
    # Whoever takes this one has seen what waits in the queue since.
    await end_of(await outsider.start("pass_by"))
    states = [await handle.status() for handle in handles]
    expect(states.count(RunState.RUNNING), 2, "how many are executed")
    room.gate.open()
    results = [await end_of(outsider.handle(each.run_id)) for each in handles]
    expect(sorted(room.entered), sorted(results), "which were executed")
    expect(room.most, Counter("abc"), "how many of a key were executed at once")


async def what_has_priority_goes_first(scene: Scene) -> None:
    """Of what waits in one queue."""
    room = _Room()
    app = await scene.worker(room.serving(concurrency=1))
    first = await app.start("work", "first", queue="mail")
    await room.gate.reached()
    handles = [first]
    for number, priority in enumerate((0, 5, 9)):
        who = f"number {number}"
        handles.append(await app.start("work", who, queue="mail", priority=priority))
    expect(await handles[1].status(), RunState.PENDING, "a run that has to wait")
    room.gate.open()
    for handle in handles:
        await end_of(handle)
    wanted = ["first", "number 2", "number 1", "number 0"]
    expect(room.entered, wanted, "the order in which they were executed")


async def a_paused_queue_lets_nothing_through(scene: Scene) -> None:
    """Until it is resumed; nobody else is kept waiting."""
    room = _Room()
    room.gate.open()
    worker, outsider = await scene.worker(room.serving()), await scene.outsider(room.serving())
    await outsider.pause_queue("mail")
    queued = await worker.start("work", "queued", queue="mail")
    # Whoever takes this one has seen what waits in the queue since.
    await end_of(await outsider.start("pass_by"))
    expect(await queued.status(), RunState.PENDING, "a run of a queue that is paused")
    await outsider.resume_queue("mail")
    expect(await end_of(queued), "queued", "the run after that")
    expect(room.entered, ["queued"], "what was executed")


async def a_run_that_waits_holds_no_place(scene: Scene) -> None:
    """Others of its queue go on meanwhile."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context, name: str) -> str:
            return await context.wait_for(name)

        app.queue("mail", concurrency=1)

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    handles = [await worker.start("work", name, queue="mail") for name in ("one", "other")]
    for handle in handles:
        await stands(outsider, handle.run_id, RunState.SUSPENDED)
    for handle, name in zip(handles, ("one", "other"), strict=True):
        await outsider.send(handle.run_id, name, name)
        expect(await end_of(handle), name, "the result")


async def a_queue_that_nobody_declared_is_refused(scene: Scene) -> None:
    """Nothing is written."""
    app = await scene.worker(_Room().serving())
    with refusal(UnknownQueue, "a queue that nobody declared"):
        await app.start("work", "who", queue="post")
    expect(await app.list(), [], "the runs that are there")
