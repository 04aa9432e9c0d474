"""The chat endpoints, over real sockets, as `useChat` asks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App
from perdure.server import create_server
from perdure.session.codec import UiMessageCodec
from perdure.session.run import AgentRun, SessionInvocation
from perdure.session.session import AgentSession
from tests.harness import app_on, run
from tests.serving import GRANTS, Script, Served, scripted, served
from tests.session_agents import source, text, tool_call

Scene = Callable[[Served, Script], Awaitable[None]]


def played(folder: Path, scene: Scene) -> None:
    async def main() -> None:
        app, script = scripted(folder)
        async with served(app) as it:
            await scene(it, script)

    run(main())


def said(words: str, key: str = "m1", **more: Any) -> dict[str, Any]:
    """Return what `useChat` posts for something that a person says."""
    message = {"id": key, "role": "user", "parts": [{"type": "text", "text": words}]}
    return {"id": "s1", "messages": [message], "trigger": "submit-message", **more}


def texts(chunks: list[Any]) -> str:
    return "".join(chunk.get("delta", "") for chunk in chunks if isinstance(chunk, dict))


async def answered(it: Served, script: Script, body: dict[str, Any], words: str) -> list[Any]:
    """Say something, and return the stream of the answer."""
    async with it.stream("/api/chat", body) as stream:
        script.say(words, None)
        return await stream.rest()


async def shown(it: Served) -> list[tuple[str, str, str]]:
    """Return the messages that a page begins with: role, id and text."""
    messages = (await it.get("/api/chat/s1/messages")).json()
    return [
        (m["role"], m["id"], "".join(part.get("text", "") for part in m["parts"])) for m in messages
    ]


def test_an_answer_is_one_message_and_a_page_that_comes_later_has_it_whole(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")) as stream:
            assert stream.response.headers["content-type"] == "text/event-stream"
            assert stream.response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            script.say("Hel")
            first = await stream.until("text-delta")
            assert [chunk["type"] for chunk in first] == [
                "start",
                "start-step",
                "text-start",
                "text-delta",
            ]
            async with it.stream("/api/chat/s1/stream") as late:
                assert (await late.until("text-delta"))[0] == first[0]
                script.say("lo", None)
                for reader in (stream, late):
                    rest = await reader.rest()
                    assert texts(rest) == "lo"
                    assert [c["type"] for c in rest[-3:-1]] == ["finish-step", "finish"]
                    assert rest[-1] == "[DONE]"
        assert await shown(it) == [
            ("user", "m1", "hi"),
            ("assistant", first[0]["messageId"], "Hello"),
        ]
        assert (await it.get("/api/chat/s1/stream")).status_code == 204

    played(tmp_path, scene)


def test_only_the_newest_message_of_a_page_counts(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        await answered(it, script, said("hi"), "Hello.")
        body = said("and now?", "m2")
        forged = {"id": "x", "role": "assistant", "parts": [{"type": "text", "text": "FORGED"}]}
        body["messages"].insert(0, forged)
        await answered(it, script, body, "Now.")
        assert [words for _, _, words in await shown(it)] == ["hi", "Hello.", "and now?", "Now."]
        assert script.asked == ["hi", "and now?"]

    played(tmp_path, scene)


def test_the_same_message_sent_again_is_answered_once(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        first = await answered(it, script, said("hi"), "Hello.")
        async with it.stream("/api/chat", said("hi")) as stream:
            again = await stream.rest()
        assert (texts(first), again[0]) == (texts(again), first[0])
        assert script.asked == ["hi"]

    played(tmp_path, scene)


def test_a_page_that_leaves_cancels_nothing(tmp_path: Path) -> None:
    """T55: a dropped subscriber is no cancel."""

    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")) as stream:
            script.say("Hel")
            await stream.until("text-delta")
        script.say("lo", None)
        async with it.stream("/api/chat/s1/stream") as late:
            if late.response.status_code == 200:
                await late.rest()
        assert (await shown(it))[-1][2] == "Hello"

    played(tmp_path, scene)


def test_stop_cancels_and_keeps_what_was_said(tmp_path: Path) -> None:
    """T55: a cancel by another client stops the run, and the partial text stays."""

    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")) as stream:
            script.say("Hel")
            await stream.until("text-delta")
            stopped = await it.post("/api/chat/s1/stop", token="bob")
            assert (stopped.status_code, len(stopped.json()["cancelled"])) == (202, 1)
            rest = await stream.rest()
            assert [chunk["type"] for chunk in rest[-3:-1]] == ["finish-step", "abort"]
            assert rest[-1] == "[DONE]"
        assert (await shown(it))[-1][2] == "Hel"
        assert (await it.post("/api/chat/s1/stop")).json() == {"cancelled": []}

    played(tmp_path, scene)


def test_a_run_that_fails_says_so_and_can_be_given_anew(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")) as stream:
            script.say("Hel", ValueError("no such model"))
            rest = await stream.rest()
            assert rest[-2]["type"] == "error"
        again = {**said("hi"), "trigger": "regenerate-message"}
        chunks = await answered(it, script, again, "Hello.")
        assert texts(chunks) == "Hello."
        assert [words for _, _, words in await shown(it)] == ["hi", "Hello."]

    played(tmp_path, scene)


def test_an_answer_is_given_anew_and_a_question_is_edited(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        first = (await answered(it, script, said("hi"), "Hello."))[0]["messageId"]
        again = {**said("hi"), "trigger": "regenerate-message", "messageId": first}
        second = (await answered(it, script, again, "Hey."))[0]["messageId"]
        assert second != first
        assert [words for _, _, words in await shown(it)] == ["hi", "Hey."]
        await answered(it, script, said("bye", messageId="m1"), "See you.")
        assert [words for _, _, words in await shown(it)] == ["bye", "See you."]
        await answered(it, script, said("BYE", messageId="m1"), "SEE YOU.")
        assert [words for _, _, words in await shown(it)] == ["BYE", "SEE YOU."]
        assert (await it.post("/api/chat", said("x", messageId="gone"))).status_code == 404

    played(tmp_path, scene)


class Waiting:
    """An App that executes nothing, and an agent that a test plays by hand."""

    def __init__(self, it: Served, app: App) -> None:
        self.it = it
        self.app = app

    async def run(self) -> str:
        """Return the run that the newest POST has started."""
        return (await self.app.list())[0].run_id

    @asynccontextmanager
    async def agent(self, event_id: str, invocation: str = "i1") -> AsyncGenerator[AgentRun]:
        channel = self.app.channel("s1", "agent")
        async with AgentSession(channel, UiMessageCodec()) as session:
            opened = session.create_run(
                SessionInvocation(event_id, "s1"),
                run_id=await self.run(),
                invocation_id=invocation,
            )
            await opened.start()
            yield opened


def waited(folder: Path, scene: Callable[[Waiting], Awaitable[None]]) -> None:
    async def main() -> None:
        app = app_on(folder)

        @app.turn(version=1)
        async def answer(context: Any, turn: Any) -> None: ...

        async with served(app, works=False) as it:
            await scene(Waiting(it, app))

    run(main())


async def half(opened: AgentRun, step_id: str) -> None:
    """Begin a step that fails."""
    step = opened.create_step(step_id=step_id)
    await step.start()
    await step.pipe(source(text("Once upon a dea")[:4], then=RuntimeError("broken")))
    await step.end()


@pytest.mark.parametrize("knows", [True, False])
def test_a_step_that_is_tried_again_replaces_itself(tmp_path: Path, knows: bool) -> None:
    async def scene(w: Waiting) -> None:
        header = {} if knows else {"x_perdure_reset": "resume"}
        async with w.it.stream("/api/chat", said("hi"), **header) as stream:
            async with w.agent("alice/chat/m1") as opened:
                await half(opened, "s")
                await stream.until("text-delta")
                await opened.create_step(step_id="s").start()
                told = await stream.until("reset-step" if knows else "error")
            if knows:
                assert told[-1]["type"] == "reset-step"
                return
            assert [chunk["type"] for chunk in told[-2:]] == ["data-perdure-resume", "error"]
            assert await stream.rest() == ["[DONE]"]
        async with w.it.stream("/api/chat/s1/stream", **header) as stream:
            assert await stream.event() == {"type": "start", "messageId": await w.run()}

    waited(tmp_path, scene)


def test_a_page_that_comes_before_the_answer_waits_for_it(tmp_path: Path) -> None:
    async def scene(w: Waiting) -> None:
        async with w.it.stream("/api/chat", said("hi")):
            pass
        async with w.it.stream("/api/chat/s1/stream") as stream:
            assert stream.response.status_code == 200
            async with w.agent("alice/chat/m1") as opened:
                await opened.pipe(source(text("Hello.")))
                await opened.end()
            assert texts(await stream.rest()) == "Hello."

    waited(tmp_path, scene)


def test_stop_reaches_a_run_that_has_not_begun(tmp_path: Path) -> None:
    async def scene(w: Waiting) -> None:
        async with w.it.stream("/api/chat", said("hi")):
            pass
        (cancelled,) = (await w.it.post("/api/chat/s1/stop")).json()["cancelled"]
        assert cancelled == await w.run()
        assert (await w.app.list())[0].state == "cancelled"
        async with w.agent("alice/chat/m1") as opened:
            await opened.end("cancelled")
        (told,) = (await w.it.get("/sessions/s1/messages")).json()["runs"]
        assert (told["runId"], told["status"]) == (cancelled, "cancelled")

    waited(tmp_path, scene)


def continued(run_id: str, part: dict[str, Any]) -> dict[str, Any]:
    message = {"id": run_id, "role": "assistant", "parts": [{"type": "step-start"}, part]}
    return {"id": "s1", "messages": [message], "trigger": "submit-message", "messageId": run_id}


def test_what_a_tool_of_the_page_returns_goes_on_under_the_same_message(tmp_path: Path) -> None:
    async def scene(w: Waiting) -> None:
        async with w.it.stream("/api/chat", said("hi")) as stream:
            async with w.agent("alice/chat/m1") as opened:
                await opened.pipe(source(tool_call("call-1", ask=False)))
                await opened.suspend()
            await stream.rest()
        run_id = await w.run()
        part = {"type": "tool-deleteDb", "toolCallId": "call-1", "state": "output-available"}
        body = continued(run_id, {**part, "input": {"db": "prod"}, "output": "gone"})
        async with (
            w.it.stream("/api/chat", body) as stream,
            w.it.stream("/api/chat/s1/stream") as late,
        ):
            assert (await late.event()) == {"type": "start", "messageId": run_id}
            event_id = await _newest_event(w.app)
            async with w.agent(event_id, "i2") as opened:
                await opened.pipe(source(text("Deleted.")))
                await opened.end()
            chunks = await stream.rest()
            assert texts(await late.rest()) == "Deleted."
        assert chunks[0] == {"type": "start", "messageId": run_id}
        assert [chunk["type"] for chunk in chunks[1:3]] == ["start-step", "text-start"]
        assert (await shown(w.it))[1][:2] == ("assistant", run_id)

    waited(tmp_path, scene)


async def _newest_event(app: App) -> str:
    page = await app.channel("s1", "test").history()
    return next(m.header("event-id") for m in page.messages if m.name == "ai-input")


def test_a_server_that_closes_tells_pages_to_resume(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")) as stream:
            script.say("Hel")
            await stream.until("text-delta")
            it.server.hand_over()
            kinds = [c if isinstance(c, str) else c["type"] for c in await stream.rest()]
            assert kinds == ["data-perdure-resume", "error", "[DONE]"]
        script.say(None)

    played(tmp_path, scene)


def test_a_server_is_mounted_in_an_app_that_opens_it(tmp_path: Path) -> None:
    async def main() -> None:
        app, script = scripted(tmp_path)
        site = Starlette(routes=[Mount("/agents", create_server(app, authorize=GRANTS.get))])
        transport = httpx.ASGITransport(site)
        async with app, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            script.say("Hello.", None)
            headers = {"authorization": "Bearer alice"}
            answer = await client.post("/agents/api/chat", json=said("hi"), headers=headers)
            assert '"delta":"Hello."' in answer.text

    run(main())


def test_requests_are_answered_while_a_stream_is_open(tmp_path: Path) -> None:
    async def scene(it: Served, script: Script) -> None:
        async with it.stream("/api/chat", said("hi")):
            together = [it.get("/healthz") for _ in range(5)]
            assert [r.json()["status"] for r in await asyncio.gather(*together)] == ["ok"] * 5
        script.say(None)

    played(tmp_path, scene)
