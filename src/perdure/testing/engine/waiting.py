from __future__ import annotations

import asyncio
from typing import Any

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import MessageConflict, MessageTaken, RunEnded, UnknownRun, WaitTimedOut
from perdure.testing.engine.scene import WAITING, Gate, Register, Scene, end_of, stands
from perdure.testing.storage.expecting import ensure, expect, refusal


def _listening(count: int, gate: Gate | None = None) -> Register:
    """Return what registers a run that waits for so many messages, the last behind the gate."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def listen(context: Context) -> list[Any]:
            heard = [await context.wait_for("news") for _ in range(count - 1)]
            if gate is not None:
                await gate()
            return [*heard, await context.wait_for("news")]

    return serving


async def a_run_sleeps_and_goes_on_by_itself(scene: Scene) -> None:
    """Not before its time is over."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def nap(context: Context) -> float:
            began = await context.now()
            await context.sleep(0.2)
            return (await context.now() - began).total_seconds()

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    handle = await outsider.start("nap", run_id=scene.name())
    slept = await end_of(worker.handle(handle.run_id))
    ensure(slept >= 0.2, f"it sleeps for as long as it asked for, not {slept} seconds")


async def a_sleep_that_began_keeps_its_end(scene: Scene) -> None:
    """Whatever happens meanwhile, on this worker or another one; it takes nothing but rows."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def wait(context: Context) -> None:
            await asyncio.gather(context.sleep(3600), context.wait_for("news"))

    one = await scene.worker(serving)
    handle = await one.start("wait", run_id=scene.name())
    before = await stands(one, handle.run_id, *WAITING)
    expect((before.holder, before.wake_at is None), (None, False), "its holder, and when it wakes")
    await scene.close(one)
    other = await scene.worker(serving)
    await other.send(handle.run_id, "news")
    row = await stands(other, handle.run_id, RunState.SLEEPING)
    expect(row.wake_at, before.wake_at, "when it wakes")
    ensure(row.generation > before.generation, "it was executed meanwhile")


async def a_message_that_comes_first_is_not_lost(scene: Scene) -> None:
    """Neither before anybody waits for it, nor before anybody executes the run."""
    outsider = await scene.outsider(_listening(2))
    handle = await outsider.start("listen", run_id=scene.name())
    await outsider.send(handle.run_id, "news", {"of": b"bytes"})
    await outsider.send(handle.run_id, "other", "not this one")
    worker = await scene.worker(_listening(2))
    await stands(outsider, handle.run_id, RunState.SUSPENDED)
    await worker.send(handle.run_id, "news", 2)
    expect(await end_of(handle), [{"of": b"bytes"}, 2], "what it heard")


async def a_message_wakes_a_run_that_was_put_away(scene: Scene) -> None:
    """Whoever sends it, and although nothing but rows is left of the run."""
    worker, outsider = await scene.worker(_listening(2)), await scene.outsider(_listening(2))
    handle = await worker.start("listen", run_id=scene.name())
    for number, app in enumerate((outsider, worker)):
        row = await stands(outsider, handle.run_id, RunState.SUSPENDED)
        expect((row.holder, row.wake_at), (None, None), "its holder, and when it wakes")
        await app.send(handle.run_id, "news", number, by="ada")
        taken = await app.messages(handle.run_id)
        expect([each.sent_by for each in taken], ["ada"] * (number + 1), "who sent them")
    expect(await end_of(handle), [0, 1], "what it heard")


async def messages_are_taken_once_and_in_order(scene: Scene) -> None:
    """Over an execution that is cut short after it took some."""
    gate = Gate()
    one = await scene.worker(_listening(4, gate))
    handle = await one.start("listen", run_id=scene.name())
    for number in range(4):
        await one.send(handle.run_id, "news", number)
    await gate.reached()
    await scene.close(one)
    gate.open()
    other = await scene.worker(_listening(4, gate))
    expect(await end_of(other.handle(handle.run_id)), [0, 1, 2, 3], "what it heard")
    kept = await other.messages(handle.run_id)
    expect([each.taken_by is None for each in kept], [False] * 4, "those that nobody took")


async def what_has_come_is_taken_without_waiting(scene: Scene) -> None:
    """And only that."""
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def look(context: Context) -> list[list[Any]]:
            before = await context.take("news")
            await gate()
            return [before, await context.take("news"), await context.take("news")]

    app = await scene.worker(serving)
    handle = await app.start("look", run_id=scene.name())
    await gate.reached()
    for number in range(2):
        await app.send(handle.run_id, "news", number)
    gate.open()
    expect(await end_of(handle), [[], [0, 1], []], "what it took")


async def one_id_is_one_message(scene: Scene) -> None:
    """However often it is sent, also after it was taken; anything else under it is refused."""
    worker, outsider = await scene.worker(_listening(2)), await scene.outsider(_listening(2))
    handle = await worker.start("listen", run_id=scene.name())
    sending = [app.send(handle.run_id, "news", 1, id="m-1") for app in (worker, outsider)]
    await asyncio.gather(*sending)
    await stands(outsider, handle.run_id, RunState.SUSPENDED)
    await outsider.send(handle.run_id, "news", 1, id="m-1")
    with refusal(MessageConflict, "another message under the id"):
        await outsider.send(handle.run_id, "news", 2, id="m-1")
    await outsider.send(handle.run_id, "news", 2, id="m-2")
    expect(await end_of(handle), [1, 2], "what it heard")


async def a_message_is_changed_until_it_is_taken(scene: Scene) -> None:
    """Edited, or withdrawn; then it is too late."""
    gate = Gate()
    worker, outsider = (
        await scene.worker(_listening(1, gate)),
        await scene.outsider(_listening(1, gate)),
    )
    handle = await worker.start("listen", run_id=scene.name())
    await gate.reached()
    for name in ("withdrawn", "edited"):
        await outsider.send(handle.run_id, "news", "first", id=name)
    withdrawn = [await outsider.withdraw(handle.run_id, "withdrawn") for _ in range(2)]
    expect(withdrawn, [True, False], "whether there was one to be taken back")
    edited = await outsider.edit(handle.run_id, "edited", "second")
    expect(edited.edition, 2, "how often it was said")
    gate.open()
    expect(await end_of(handle), ["second"], "what it heard")
    with refusal(MessageTaken, "a message taken back too late"):
        await outsider.withdraw(handle.run_id, "edited")


async def nothing_is_sent_to_who_is_not_there(scene: Scene) -> None:
    """Nor to a run that has ended."""
    app = await scene.worker(_listening(1))
    handle = await app.start("listen", run_id=scene.name())
    await app.send(handle.run_id, "news", 1)
    await end_of(handle)
    with refusal(RunEnded, "a message to a run that has ended"):
        await app.send(handle.run_id, "news", 2)
    with refusal(UnknownRun, "a message to no run"):
        await app.send(scene.name("nobody"), "news", 2)


async def a_wait_ends_without_a_message_when_its_time_is_over(scene: Scene) -> None:
    """In every execution; what comes later is for another wait."""
    gate = Gate()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def listen(context: Context) -> str:
            try:
                return await context.wait_for("news", timeout_seconds=0.2)
            except WaitTimedOut:
                await gate()
                return f"late: {await context.wait_for('news')}"

    one = await scene.worker(serving)
    handle = await one.start("listen", run_id=scene.name())
    await gate.reached()
    await one.send(handle.run_id, "news", "hello")
    await scene.close(one)
    gate.open()
    other = await scene.worker(serving)
    expect(await end_of(other.handle(handle.run_id)), "late: hello", "what it heard")


async def an_event_outside_has_one_answer(scene: Scene) -> None:
    """What it came to, or why it will not come: the first one stands."""
    worker, outsider = await scene.worker(_listening(2)), await scene.outsider(_listening(2))

    async def answer(token: str, told: dict[str, Any]) -> None:
        if "payload" in told:
            await outsider.resolve_event(token, told["payload"])
        else:
            await outsider.fail_event(token, told["failure"])

    for told in ({"payload": [1]}, {"failure": "lost"}):
        handle = await worker.start("listen", run_id=scene.name(*told))
        await stands(outsider, handle.run_id, RunState.SUSPENDED)
        token = f"{handle.run_id}/news"
        await asyncio.gather(answer(token, told), answer(token, told))
        with refusal(MessageConflict, "another answer"):
            await worker.resolve_event(token, [2])
        await outsider.send(handle.run_id, "news", "and more")
        expect(await end_of(handle), [told, "and more"], "what it was told")
