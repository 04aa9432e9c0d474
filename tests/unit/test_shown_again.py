"""A run that is begun again after it failed shows what had been shown, and goes on with that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunFailed
from perdure.channels.memory import MemoryChannel
from perdure.engine.shown_again import show_again
from perdure.errors import LifecycleNotPublished, OperationFailed
from perdure.session.channel import Draft
from perdure.session.codec import ToolResult
from perdure.session.session import AgentSession
from perdure.testing.scripted import Call, Reply
from perdure.turn import Turn
from tests.answering import ANSWER, Support
from tests.harness import app_on, run
from tests.session_agents import ASKED, Flaky, World, source, text, tool_call
from tests.turning import begun, ends, joined, posted, settled, shown, tools, view

pytestmark = pytest.mark.usefixtures("storage")

AGAIN = "r.2"


def test_a_run_that_a_person_resumes_shows_all_that_it_returns(tmp_path: Path) -> None:
    app, down = app_on(tmp_path), [True, True]

    async def first() -> AsyncIterator[str]:
        yield "Here is "

    async def second() -> AsyncIterator[str]:
        yield "your answer: "
        if down:
            raise ValueError(down.pop())
        yield "42."

    @app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> Any:
        del context
        said = await turn.stream(first)
        try:
            return said + await turn.stream(second)
        except OperationFailed:
            if down:
                raise ValueError(down.pop()) from None
            return said + await turn.stream(second)

    async def main() -> None:
        async with app, joined(app) as client:
            sent = await client.send("hi")
            handle = await posted(app, sent)
            with pytest.raises(RunFailed):
                await handle.result()
            await settled(app)
            await app.resume(handle.run_id)
            assert await app.handle(handle.run_id).result() == "Here is your answer: 42."
            await settled(app)
            assert shown(await view(app)) == ["Here is ", "your answer: 42."]

    run(main())


def test_what_a_process_has_not_shown_again_another_one_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, down, tries = app_on(tmp_path), [True], [True]

    async def dying(*args: Any) -> None:
        if tries:
            raise LifecycleNotPublished(str(tries.pop()))
        await show_again(*args)

    async def word(text: str) -> AsyncIterator[str]:
        yield text

    @app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> Any:
        del context
        said = await turn.stream(word, "one ")
        if down:
            raise ValueError(down.pop())
        return said + await turn.stream(word, "two")

    async def main() -> None:
        async with app:
            handle = await begun(app)
            with pytest.raises(RunFailed):
                await handle.result()
            await settled(app)
            monkeypatch.setattr("perdure.engine.showings.show_again", dying)
            await app.resume(handle.run_id)
            assert await app.handle(handle.run_id).result() == "one two"
            await settled(app)
            assert (shown(await view(app)), tries) == (["one ", "two"], [])

    run(main())


def test_what_a_tool_came_to_stands_at_its_call_again(tmp_path: Path) -> None:
    script = [Reply(calls=[Call("look", {"order": 7})]), Reply(text=ANSWER)]
    desk, down = Support(tmp_path, script), [True]

    @desk.app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> Any:
        said = await desk.answer(context, turn)
        if down:
            raise ValueError(down.pop())
        return said

    async def main() -> None:
        async with desk.app as app:
            handle = await begun(app, function="answer")
            with pytest.raises(RunFailed):
                await handle.result()
            await settled(app)
            before = tools(await view(app))
            await app.resume(handle.run_id)
            assert await app.handle(handle.run_id).result() == ANSWER
            await settled(app)
            assert (shown(await view(app)), desk.calls) == ([ANSWER], ["look 7"])
            assert tools(await view(app)) == before != []
            ended = await ends(app)
            assert ended == {handle.run_id: ["error"], f"{handle.run_id}.2": ["complete"]}
            await (await begun(app, "and now?", function="answer")).result()
            kinds = [part.part_kind for m in desk.requests[-1].messages for part in m.parts]
            assert kinds == ["user-prompt", "tool-call", "tool-return", "text", "user-prompt"]

    run(main())


class Killed(BaseException):
    """The process is gone."""


class Dying(Flaky):
    """A channel whose process is killed before one of its writes."""

    def __init__(self, inner: MemoryChannel, writes: int) -> None:
        super().__init__(inner)
        self.left = writes

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return await super().publish(drafts)


async def failed(world: World, agent: AgentSession) -> None:
    """Write a run whose last step has failed, and which a client's tool had answered."""
    async with world.client() as client:
        asked = await client.send("hi", event_id="e1")
        made = agent.create_run(asked.invocation, run_id="r")
        await made.start()
        async with made.create_step(step_id="again") as step:
            await step.pipe(source(text("no")))
        async with made.create_step(step_id="ask") as step:
            calls = tool_call("c1", "c2", "c3", ask=False)
            await step.pipe(source([*calls, *text("so", stream="t2")[2:]]))
        await made.suspend()
        await asked.ended()
        given = await client.answer(ToolResult("c2", output=2), in_place=True)
        made = agent.create_run(given.invocation)
        await made.start()
        message = agent.find_call("r", "c1")
        async with made.create_step(step_id="told") as step:
            done = {"type": "tool-output-available", "toolCallId": "c1", "output": 1}
            asks = {"type": "tool-approval-request", "toolCallId": "c3", "approvalId": "a"}
            await step.pipe(source([done, asks]), message_id=message)
        async with made.create_step(step_id="again") as step:
            await step.pipe(source(text("yes")))
        async with made.create_step(step_id="half") as step:
            await step.pipe(source(text("ha")[:-3], then=ValueError("gone")))
        await made.end("error")


def whole(world: World) -> Any:
    """Return what is shown of the run, without the names of its messages."""
    messages = world.seen()["messages"][1:]
    assert all(one["message"]["id"] == one["codecMessageId"] for one in messages)
    return [message["message"]["parts"] for message in messages]


def test_what_is_shown_again_is_there_once_wherever_a_process_dies() -> None:
    async def scene(writes: int) -> bool:
        """Return whether the first process lived to its end with so many writes."""
        world, lived = World(), 0
        async with world.agent() as agent:
            await failed(world, agent)
        *before, half = whole(world)
        assert half[-1]["text"] == "ha"
        for left in (writes, 1000):
            channel = Dying(world.log.channel("agent"), left)
            with suppress(Killed):
                async with world.agent(channel=channel) as agent:
                    await agent.find_input(ASKED)
                    again = agent.create_run(ASKED, run_id=AGAIN, invocation_id=AGAIN)
                    await again.start()
                    await show_again(agent, again, "r")
                    lived += 1
        assert whole(world) == before
        return lived == 2

    writes = 0
    while not asyncio.run(scene(writes)):
        writes += 1
    assert writes > 15
