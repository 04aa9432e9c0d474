"""Sessions of this library and of the JavaScript client on one channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.session.client import ClientSession
from perdure.session.codec import ToolResult
from perdure.session.lifecycle import RunStatus
from perdure.session.run import SessionInvocation
from perdure.session.steered import SteerOutcome
from tests.acceptance.samples import LONG
from tests.interop.javascript import JavaScript, JavaScriptError, installed, javascript
from tests.session_agents import World, source, text, tool_call

pytestmark = LONG

Scene = Callable[[World, JavaScript], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def play() -> Callable[[Scene], World]:
    folder = installed()

    def playing(scene: Scene) -> World:
        async def main() -> World:
            world = World()
            async with asyncio.timeout(60), javascript(world.log, folder) as js:
                await scene(world, js)
                assert js.unhandled == []
            assert world.errors == []
            return world

        return asyncio.run(main())

    return playing


class JsClient:
    """A client in JavaScript; what it sends is kept as `h1`, `h2` and so on."""

    def __init__(self, js: JavaScript) -> None:
        self.js = js
        self._count = 0

    async def sent(self, how: str, *arguments: Any) -> tuple[str, SessionInvocation]:
        """Send something, and return the name it is kept under and what an agent is given."""
        self._count += 1
        name = f"h{self._count}"
        await self.js.call("alice", how, *arguments, keep=name)
        return name, SessionInvocation(await self.js.get(name, "inputEventId"))

    async def message(self, words: str) -> dict[str, str]:
        """Make a message of a person, and return what stands for it."""
        self._count += 1
        name = f"m{self._count}"
        parts = [{"type": "text", "text": words}]
        said = {"id": name, "role": "user", "parts": parts}
        await self.js.call("codec", "createUserMessage", said, keep=name)
        return {"kept": name}

    async def same_as(self, world: World) -> list[str]:
        """Return the texts it shows, which are those that anybody sees here."""
        view = await self.js.view("alice")
        assert view == world.seen()
        return texts(view)


def texts(view: dict[str, Any]) -> list[str]:
    parts = [part for message in view["messages"] for part in message["message"]["parts"]]
    return [part["text"] for part in parts if "text" in part]


async def js_run(js: JavaScript, verb: str, asked: SessionInvocation, **ids: str) -> None:
    """Have an agent in JavaScript create or adopt a run, which is kept as `run`."""
    given = {"inputEventId": asked.input_event_id, "sessionName": "room"}
    await js.call("Invocation", "fromJSON", given, keep="invocation")
    named = {name.replace("_id", "Id"): value for name, value in ids.items()}
    await js.call("agent", verb, {"kept": "invocation"}, named, keep="run")
    await js.call("run", "start" if verb == "createRun" else "load")


async def js_step(js: JavaScript, step_id: str, chunks: list[Any]) -> str:
    await js.call("run", "createStep", {"stepId": step_id}, keep="step")
    await js.call("step", "start")
    result = await js.call("step", "pipe", {"stream": chunks})
    await js.call("step", "end")
    return result["reason"]


def test_a_run_of_python_is_adopted_and_superseded_in_javascript(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        client = JsClient(js)
        handle, asked = await client.sent("view.send", await client.message("A story"))
        async with world.agent() as agent:
            run = agent.create_run(asked, run_id="r", invocation_id="i")
            await run.start()
            step = run.create_step(step_id="answer")
            await step.start()
            writing = asyncio.create_task(
                step.pipe(source(text("Once upon a dea")[:-3], then=asyncio.Event()))
            )
            await world.until(lambda: world.log.deliveries[-1].data == "Once upon a dea")
            await js.get(handle, "started")
            assert await client.same_as(world) == ["A story", "Once upon a dea"]
            writing.cancel()
        await js.session("Agent", "agent", "agent")
        await js_run(js, "adoptRun", asked, run_id="r", invocation_id="i")
        assert await js_step(js, "answer", text("Once upon a time.")) == "complete"
        await js.call("run", "end", {"reason": "complete"})
        assert await client.same_as(world) == ["A story", "Once upon a time."]
        async with world.agent() as late:
            with pytest.raises(Exception, match="has ended"):
                await late.adopt_run(run_id="r", invocation_id="i").load()
        for code, run_id in ((40003, "r"), (104010, "no such run")):
            with pytest.raises(JavaScriptError) as refused:
                await js_run(js, "adoptRun", asked, run_id=run_id, invocation_id="i2")
            assert refused.value.code == code

    (run,) = play(scene).seen()["runs"]
    assert run["steps"][0]["attemptCount"] == 2
    assert run["clientId"] == "alice"


def test_a_run_of_javascript_is_adopted_and_superseded_in_python(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Agent", "agent", "agent")
        async with world.client() as client:
            sent = await client.send("A story")
            await js_run(js, "createRun", sent.invocation, run_id="r", invocation_id="i")
            assert await sent.started() == "r"
            await js.call("run", "createStep", {"stepId": "answer"}, keep="step")
            await js.call("step", "start")
            chunks = [*text("Once upon a dea")[:-3], {"wait": True}]
            writing = asyncio.create_task(js.call("step", "pipe", {"stream": chunks}))
            await world.until(lambda: "Once upon a dea" in texts(world.seen()))
            await js.call("agent", "detach")
            assert (await writing)["reason"] == "cancelled"
            async with world.agent() as agent:
                run = agent.adopt_run(run_id="r", invocation_id="i", trigger=sent.invocation)
                await run.load()
                assert not run.cancelled.is_set()
                async with run.create_step(step_id="answer") as step:
                    await step.pipe(source(text("Once upon a time.")))
                await run.end()
            assert (await sent.ended()).lifecycle.status is RunStatus.COMPLETE
        await js.session("Client", "alice", "alice")
        assert await JsClient(js).same_as(world) == ["A story", "Once upon a time."]

    play(scene)


async def answered(world: World, asked: SessionInvocation, *words: str) -> None:
    async with world.agent() as agent:
        run = agent.create_run(asked)
        await run.start()
        for word in words:
            await run.pipe(source(text(word)))
        await run.end()


def test_a_client_in_javascript_is_answered_in_python(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        client = JsClient(js)
        _, asked = await client.sent("view.send", await client.message("Joke"))
        await answered(world, asked, "one", "two")
        view = await js.view("alice")
        joke, one, two = (message["codecMessageId"] for message in view["messages"])
        _, asked = await client.sent("view.regenerate", two)
        await answered(world, asked, "three")
        assert await client.same_as(world) == ["Joke", "one", "three"]
        _, asked = await client.sent("view.regenerate", one)
        await answered(world, asked, "four")
        assert await client.same_as(world) == ["Joke", "four"]
        _, asked = await client.sent("view.edit", joke, await client.message("Riddle"))
        await answered(world, asked, "five")
        assert await client.same_as(world) == ["Riddle", "five"]

    play(scene)


def test_a_client_in_javascript_steers_and_cancels_a_run_of_python(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        client = JsClient(js)
        handle, asked = await client.sent("view.send", await client.message("Plan a trip"))
        async with world.agent() as agent:
            run = agent.create_run(asked, run_id="r")
            await run.start()
            assert run.has_input()
            await run.pipe(source(text("Rome")))
            said = await client.message("make it cheap")
            await js.call(handle, "steer", said, keep="steering")
            await world.until(lambda: bool(run.steers))
            assert run.steers[0].payload["parts"] == [{"type": "text", "text": "make it cheap"}]
            assert run.has_input()
            await run.pipe(source(text("A cheap trip")))
            assert not run.has_input()
            await js.call(handle, "cancel")
            await run.cancelled.wait()
            await run.end("cancelled")
        outcome = await js.get("steering", "outcome")
        assert outcome == {"consumed": True, "runTerminalReason": "cancelled"}
        shown = await client.same_as(world)
        assert shown == ["Plan a trip", "Rome", "make it cheap", "A cheap trip"]
        handle, asked = await client.sent("view.send", await client.message("Never mind"))
        await js.call(handle, "cancel")
        async with world.agent() as agent:
            run = agent.create_run(asked)
            await run.start()
            assert run.cancelled.is_set()
            await run.end("cancelled")

    play(scene)


async def called(world: World, asked: SessionInvocation, *, ask: bool) -> None:
    async with world.agent() as agent:
        run = agent.create_run(asked, run_id="r")
        await run.start()
        await run.pipe(source(tool_call("c1", ask=ask)))
        await run.suspend()


def test_a_client_in_javascript_approves_what_python_asks(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        client = JsClient(js)
        _, asked = await client.sent("view.send", await client.message("Delete prod"))
        await called(world, asked, ask=True)
        view = await js.view("alice")
        said = {"toolCallId": "c1", "approved": True, "reason": "ok"}
        target = view["messages"][1]["codecMessageId"]
        await js.call("codec", "createToolApprovalResponse", target, said, keep="yes")
        _, asked = await client.sent("view.send", {"kept": "yes"}, {"runId": "r"})
        async with world.agent() as agent:
            run = agent.create_run(asked)
            await run.start()
            (told,) = run.answers
            assert (told.payload, told.client_id, run.steers) == (said, "alice", [])
            assert run.view[-1].message["parts"][1]["state"] == "approval-responded"
            await run.pipe(source(text("Deleted.")))
            await run.end()
        assert await client.same_as(world) == ["Delete prod", "Deleted."]

    play(scene)


def test_a_tool_of_a_client_in_javascript_forks_a_run_of_python(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        client = JsClient(js)
        _, asked = await client.sent("view.send", await client.message("Where am I?"))
        await called(world, asked, ask=False)
        view = await js.view("alice")
        asking, calling = view["messages"]
        told = {
            "runMessages": [calling],
            "parentCodecMessageId": asking["codecMessageId"],
            "toolCallId": "c1",
            "result": {"output": "home"},
            "supersedesRunId": "r",
        }
        await js.call("fork", "fork", told, keep="forked")
        await js.get("forked", "input", keep="result")
        options = await js.get("forked", "sendOptions")
        _, asked = await client.sent("view.send", [{"kept": "result"}], options)
        await answered(world, asked, "At home.")
        assert await client.same_as(world) == ["Where am I?", "At home."]
        assert [run["status"] for run in world.seen()["runs"]] == ["complete"]

    play(scene)


async def js_answered(js: JavaScript, asked: SessionInvocation, words: str) -> None:
    await js_run(js, "createRun", asked)
    result = await js.call("run", "pipe", {"stream": text(words)})
    assert result["reason"] == "complete"
    await js.call("run", "end", {"reason": "complete"})


def shown(client: ClientSession) -> list[str]:
    parts = [part for folded in client.view.messages for part in folded.message["parts"]]
    return [part["text"] for part in parts if "text" in part]


def test_a_client_in_python_is_answered_in_javascript(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Agent", "agent", "agent")
        async with world.client() as client:
            joke = await client.send("Joke")
            await js_answered(js, joke.invocation, "one")
            await joke.ended()
            one = client.view.messages[-1].codec_message_id
            again = await client.regenerate(one)
            await js_answered(js, again.invocation, "two")
            await again.ended()
            assert shown(client) == ["Joke", "two"]
            edit = await client.edit(joke.input_codec_message_id, "Riddle")
            await js_answered(js, edit.invocation, "three")
            await edit.ended()
            assert shown(client) == ["Riddle", "three"]
            more = await client.send("More")
            await js_answered(js, more.invocation, "four")
            assert (await more.ended()).client_id == "alice"
        await js.session("Client", "alice", "alice")
        expected = ["Riddle", "three", "More", "four"]
        assert await JsClient(js).same_as(world) == expected

    play(scene)


def test_a_client_in_python_steers_and_cancels_a_run_of_javascript(play: Any) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Agent", "agent", "agent")
        async with world.client() as client:
            sent = await client.send("Plan a trip")
            await js_run(js, "createRun", sent.invocation)
            assert await js.call("run", "hasInput")
            await js.call("run", "pipe", {"stream": text("Rome")})
            steered = await sent.steer("make it cheap")
            await js.caught_up()
            assert await js.call("run", "hasInput")
            await js.call("run", "pipe", {"stream": text("A cheap trip")})
            chunks = [*text("and")[:-3], {"wait": True}]
            writing = asyncio.create_task(js.call("run", "pipe", {"stream": chunks}))
            await world.until(lambda: "and" in shown(client))
            await client.cancel(sent)
            assert (await writing)["reason"] == "cancelled"
            await js.call("run", "end", {"reason": "cancelled"})
            outcome = SteerOutcome(consumed=True, status=RunStatus.CANCELLED)
            assert await steered.outcome() == outcome
            early = await client.send("Never mind")
            await early.cancel()
            await js.caught_up()
            await js_run(js, "createRun", early.invocation)
            assert await js.get("run", "abortSignal.aborted")
            await js.call("run", "end", {"reason": "cancelled"})
            assert (await early.ended()).lifecycle.status is RunStatus.CANCELLED

    play(scene)


@pytest.mark.parametrize("how", ["approval", "fork", "in place"])
def test_a_client_in_python_answers_the_calls_of_javascript(play: Any, how: str) -> None:
    async def scene(world: World, js: JavaScript) -> None:
        await js.session("Client", "alice", "alice")
        await js.session("Agent", "agent", "agent")
        async with world.client() as client:
            sent = await client.send("Delete prod")
            await js_run(js, "createRun", sent.invocation, run_id="r")
            await js.call("run", "pipe", {"stream": tool_call("c1", ask=how == "approval")})
            await js.call("run", "suspend")
            assert (await sent.ended()).lifecycle.status is RunStatus.SUSPENDED
            if how == "approval":
                said = await client.approve("c1", True, "ok")
            else:
                result = ToolResult("c1", {"deleted": True})
                said = await client.answer(result, in_place=how == "in place")
            await js_answered(js, said.invocation, "Deleted.")
            run = await said.ended()
            assert (run.run_id == "r") == (how != "fork")
            assert shown(client) == ["Delete prod", "Deleted."]
            state = client.view.messages[1].message["parts"][1]["state"]
            assert state == ("approval-responded" if how == "approval" else "output-available")
        assert await JsClient(js).same_as(world) == ["Delete prod", "Deleted."]

    play(scene)
