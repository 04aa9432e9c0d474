from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import RunCancelled, RunFailed
from perdure.inbox import SAID
from perdure.session import headers
from perdure.session.client import ClientSession
from perdure.session.run import SessionInvocation
from perdure.session.sent import Sent
from perdure.testing.engine.scene import Gate, Register, Scene, end_of, stands
from perdure.testing.storage.expecting import ensure, expect, refusal, soon, within
from perdure.turn import Turn


def _answering(gate: Gate) -> Register:
    """Return what registers a turn that says something, is held at the gate, and says the rest."""

    async def words(text: str) -> AsyncIterator[str]:
        yield "You said: "
        await gate(text)
        yield text

    def serving(app: App) -> None:
        @app.turn(version=1)
        async def answer(context: Context, turn: Turn) -> str:
            text = await turn.text()
            if text == "wait":
                await context.wait_for("news")
            if text == "fail":
                raise KeyError("a secret")
            return await turn.stream(words, text)

    return serving


async def a_turn_is_streamed_and_ends_once(scene: Scene) -> None:
    """What was said is one run, however often it is started."""
    gate = Gate()
    worker, outsider = await scene.worker(_answering(gate)), await scene.outsider(_answering(gate))
    async with _joined(scene, outsider) as ada, _joined(scene, worker) as bob:
        sent = await ada.send("hello")
        handles = [await app.start_turn(sent.invocation) for app in (outsider, worker, outsider)]
        expect(len({handle.run_id for handle in handles}), 1, "the runs that answer")
        await _shown(bob, "You said: ")
        gate.open()
        await _over(sent, "complete")
        await _shown(bob, "You said: hello")
    expect(await end_of(handles[0]), "You said: hello", "what the run returns")
    expect(gate.came, ["hello"], "how often it was executed")
    expect(await _ends(scene, worker), ["complete"], "the ends that were told")


async def a_turn_that_goes_on_elsewhere_is_seen_once(scene: Scene) -> None:
    """What is shown then takes the place of what was seen."""
    gate = Gate()
    one, outsider = await scene.worker(_answering(gate)), await scene.outsider(_answering(gate))
    async with _joined(scene, outsider) as ada:
        sent = await ada.send("hello")
        handle = await outsider.start_turn(sent.invocation)
        await _shown(ada, "You said: ")
        await gate.reached()
        await scene.close(one)
        gate.open()
        await scene.worker(_answering(gate))
        await _over(sent, "complete")
        await _shown(ada, "You said: hello")
    expect(await end_of(outsider.handle(handle.run_id)), "You said: hello", "what it returns")
    expect(gate.came, ["hello", "hello"], "its executions")
    expect(await _ends(scene, outsider), ["complete"], "the ends that were told")


async def a_turn_that_fails_says_so_and_not_why(scene: Scene) -> None:
    """Its message may be nobody's business."""
    worker = await scene.worker(_answering(Gate()))
    async with _joined(scene, worker) as ada:
        sent = await ada.send("fail")
        handle = await worker.start_turn(sent.invocation)
        with refusal(RunFailed, "a turn that raised"):
            await end_of(handle)
        await _over(sent, "error")
    channel = worker.channel(scene.name("room"), "late")
    shown = str((await channel.history()).messages)
    ensure("a secret" not in shown, "what went wrong is told by its kind alone")
    expect(await _ends(scene, worker), ["error"], "the ends that were told")


async def a_cancel_from_the_session_ends_the_run(scene: Scene) -> None:
    """While it is executed."""
    gate = Gate()
    worker, outsider = await scene.worker(_answering(gate)), await scene.outsider(_answering(gate))
    async with _joined(scene, outsider) as ada:
        sent = await ada.send("hello")
        handle = await outsider.start_turn(sent.invocation)
        await gate.reached()
        await _shown(ada, "You said: ")
        await ada.cancel(sent)
        with refusal(RunCancelled, "a turn that was cancelled by who watches"):
            await end_of(handle)
        await _over(sent, "cancelled")
    expect((await worker.find(handle.run_id)).state, RunState.CANCELLED, "where it stands")
    expect(await _ends(scene, worker), ["cancelled"], "the ends that were told")


async def a_turn_that_waits_is_cancelled_at_once(scene: Scene) -> None:
    """Its session hears of that as well."""
    gate = Gate()
    worker, outsider = await scene.worker(_answering(gate)), await scene.outsider(_answering(gate))
    async with _joined(scene, outsider) as ada:
        sent = await ada.send("wait")
        handle = await outsider.start_turn(sent.invocation)
        await _over(sent, "suspended")
        await stands(worker, handle.run_id, RunState.SUSPENDED)
        await outsider.cancel_turn(scene.name("room"), handle.run_id, "ada")
        expect((await worker.find(handle.run_id)).state, RunState.CANCELLED, "where it stands")
        await _told(scene, outsider, ["cancelled"])


async def what_is_said_to_a_run_reaches_it_once(scene: Scene) -> None:
    """However often it is passed on; it starts no other run."""
    gate = Gate()
    worker, outsider = await scene.worker(_answering(gate)), await scene.outsider(_answering(gate))
    async with _joined(scene, outsider) as ada:
        sent = await ada.send("hello")
        handle = await outsider.start_turn(sent.invocation)
        await gate.reached()
        await within(sent.started(), "the start of a turn is seen")
        steered = await ada.steer(sent.run_id, "be brief")
        passed = SessionInvocation(steered.event_id, scene.name("room"))
        again = [await app.start_turn(passed) for app in (outsider, worker)]
        expect({each.run_id for each in again}, {handle.run_id}, "the run that hears it")
        gate.open()
        await _over(sent, "complete")
    heard = [(each.name, each.sent_by) for each in await worker.messages(handle.run_id)]
    expect(heard, [(SAID, "ada")], "what reached the run")
    expect(len(await worker.list()), 1, "how many runs there are")


@asynccontextmanager
async def _joined(scene: Scene, app: App) -> AsyncGenerator[ClientSession]:
    """Join the session of a check, as the one who says things."""
    async with app.client_session(scene.name("room"), "ada") as client:
        await client.load_history()
        yield client


async def _over(sent: Sent, status: str) -> None:
    """Return once whoever said something sees where its answer stands: ended, or suspended."""
    run = await within(sent.ended(), f"the answer to what was said is {status}")
    expect(run.lifecycle.status, status, "where the answer stands")


async def _shown(client: ClientSession, text: str) -> None:
    """Return once somebody sees just this as the answer."""

    async def looked() -> None:
        async for _ in client.changes():
            if _answers(client) == [text]:
                return

    await within(looked(), f"{text!r} is seen")


def _answers(client: ClientSession) -> list[str]:
    found = [each.message for each in client.view.messages]
    said = [each["parts"] for each in found if each["role"] == "assistant"]
    return ["".join(part.get("text", "") for part in parts) for parts in said]


async def _ends(scene: Scene, app: App) -> list[str]:
    """Return how the runs of the session ended, as the session has it."""
    messages = (await app.channel(scene.name("room"), "late").history(None, 1000)).messages
    ends = [message for message in messages if message.name == headers.AI_RUN_END]
    return [message.header(headers.RUN_REASON) for message in ends]


async def _told(scene: Scene, app: App, ends: list[str]) -> None:
    """Return once the session has heard of these ends."""

    async def looked() -> bool:
        return await _ends(scene, app) == ends

    await soon(looked, f"the session is told of {ends}")
