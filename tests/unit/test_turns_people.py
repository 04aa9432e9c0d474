from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import AgentStreamEvent, ModelResponse
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from perdure import Context, RunCancelled, RunFailed
from perdure.approvals import Approve, Deny
from perdure.errors import AlreadyResolved
from perdure.session.codec import ToolResult
from perdure.testing.scripted import Call, Reply, Request
from perdure.turn import Turn
from tests.answering import ANSWER, Support
from tests.harness import Pause, run
from tests.turning import (
    RUN_EVENTS,
    asked,
    begun,
    ends,
    joined,
    messages,
    names,
    posted,
    runs,
    settled,
    shown,
    tools,
    view,
)
from tests.waiting import put_away

pytestmark = pytest.mark.usefixtures("storage")

REFUND = [Reply(calls=[Call("refund", {"order": 7})]), Reply(text=ANSWER)]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("where", ["session", "app"])
def test_an_approval_is_asked_for_and_answered_once(
    tmp_path: Path, where: str, approved: bool
) -> None:
    """T59: what happens to a call is told once, over its suspension and another process."""
    events: list[str] = []

    async def note(ctx: RunContext[Any], stream: AsyncIterable[AgentStreamEvent]) -> None:
        told = [event.event_kind async for event in stream]
        events.extend(kind for kind in told if kind.startswith("function_tool"))

    def desk() -> Support:
        return Support(tmp_path, REFUND, approval=True, durable={"event_stream_handler": note})

    async def main() -> None:
        first = desk()
        async with first.app as app, joined(app) as client:
            sent = await client.send("refund order 7")
            handle = await posted(app, sent)
            assert (await sent.ended()).lifecycle.status == "suspended"
            await put_away(app, handle.run_id)
            assert tools(await view(app)) == [("call-1-1", "approval-requested", None)]
        second = desk()
        async with second.app as app, joined(app) as client:
            if where == "session":
                answer = await client.approve("call-1-1", approved, "too much")
                assert (await posted(app, answer)).run_id == handle.run_id
                assert (await posted(app, answer)).run_id == handle.run_id
                again = await client.approve("call-1-1", not approved)
                with pytest.raises(AlreadyResolved):
                    await posted(app, again)
            else:
                (item,) = await app.approvals(handle.run_id)
                verdict = Approve() if approved else Deny("too much")
                await app.resolve(handle.run_id, item.item_id, verdict, by="bob")
            assert await app.handle(handle.run_id).result() == ANSWER
            await settled(app)
            assert second.calls == (["refund 7"] if approved else [])
            assert first.calls == []
            ((_, state, output),) = tools(await view(app))
            assert state == ("output-available" if approved else "output-denied"), output
            kinds = Counter(d.codec.get("kind") for d in await messages(app) if d.name)
            assert kinds["tool-approval-request"] == 1
            assert kinds["tool-output-available"] + kinds["tool-output-denied"] == 1
            assert events == ["function_tool_call", "function_tool_result"]
            assert await names(app, *RUN_EVENTS) == [*RUN_EVENTS]
            assert await ends(app) == {handle.run_id: ["complete"]}
            (answered,) = await app.approvals(handle.run_id, open_only=False)
            assert answered.answered_by == ("alice" if where == "session" else "bob")

    run(main())


def test_no_answer_undoes_a_cancel_that_came_while_nobody_was_there(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Support(tmp_path, REFUND, approval=True)
        async with desk.app as app, joined(app) as client:
            sent = await client.send("refund order 7")
            handle = await posted(app, sent)
            assert (await sent.ended()).lifecycle.status == "suspended"
            await put_away(app, handle.run_id)
            await client.cancel(sent)
            await posted(app, await client.approve("call-1-1", approved=True))
            with pytest.raises(RunCancelled):
                await handle.result()
            await settled(app)
            assert desk.calls == []
            assert await ends(app) == {handle.run_id: ["cancelled"]}

    run(main())


@pytest.mark.parametrize("posts", [0, 2])
def test_what_is_said_meanwhile_is_heard_once_before_the_next_request(
    tmp_path: Path, posts: int
) -> None:
    async def main() -> None:
        pause = Pause()
        script = [Reply(calls=[Call("look", {"order": 7})]), Reply(text=ANSWER)]
        desk = Support(tmp_path, script)
        desk.before_look = pause
        async with desk.app as app:
            handle = await begun(app)
            await pause.reached.wait()
            async with joined(app) as client:
                steered = await client.steer(handle.run_id, "be brief")
                for _ in range(posts):
                    assert (await posted(app, steered)).run_id == handle.run_id
                while not await app.messages(handle.run_id):
                    await asyncio.sleep(0)
        pause.open = True
        desk = Support(tmp_path, script)
        async with desk.app as app, joined(app) as client:
            assert await app.handle(handle.run_id).result() == ANSWER
            await settled(app)
            assert desk.heard() == ["hi", "be brief"]
            said = [message.message for message in (await view(app)).view.messages]
            assert [m["role"] for m in said].count("user") == 2
            assert [message.taken_at is None for message in await app.messages(handle.run_id)] == [
                False
            ]
            assert len(await runs(app)) == 1
            assert (await app.rehearse(handle.run_id)).verdict == "matches"

    run(main())


def test_what_was_heard_is_heard_though_its_answer_was_cut_short(tmp_path: Path) -> None:
    looks, said, reached = asyncio.Event(), asyncio.Event(), asyncio.Event()
    script = [Reply(calls=[Call("look", {"order": 7})]), Reply(text=ANSWER)]

    def stop(request: Request, number: int) -> bool:
        if (request.number, number) == (2, 2):
            reached.set()
        return reached.is_set()

    async def look() -> None:
        looks.set()
        await said.wait()

    async def main() -> None:
        desk = Support(tmp_path, script, hangs=stop)
        desk.before_look = look
        async with desk.app as app, joined(app) as client:
            handle = await begun(app)
            await looks.wait()
            steered = await client.steer(handle.run_id, "be brief")
            await posted(app, steered)
            said.set()
            await reached.wait()
            async for _ in client.changes():
                if steered.consumed:
                    break
        async with Support(tmp_path, script).app as app, joined(app) as client:
            assert await app.handle(handle.run_id).result() == ANSWER
            assert [step.attempt_count for step in (await runs(app))[0].steps] == [1, 1, 2]
            again = await client.steer(handle.run_id, "be brief", event_id=steered.event_id)
            assert (await again.outcome()).consumed

    run(main())


@pytest.mark.parametrize("posts", [0, 2])
def test_what_is_said_before_the_run_begins_is_heard_once(tmp_path: Path, posts: int) -> None:
    async def main() -> None:
        async with Support(tmp_path, [ANSWER]).app.connect() as app, joined(app) as client:
            handle = await begun(app)
            steered = await client.steer(handle.run_id, "be brief")
            for _ in range(posts):
                await posted(app, steered)
        desk = Support(tmp_path, [ANSWER])
        async with desk.app as app:
            assert await app.handle(handle.run_id).result() == ANSWER
            assert desk.heard() == ["hi", "be brief"]
            assert len(desk.requests) == 1

    run(main())


@pytest.mark.parametrize("where", ["text", "arguments", "tool"])
def test_a_conversation_goes_on_after_a_cancel(tmp_path: Path, where: str) -> None:
    """T56: what was half done is kept on the screen, and never reaches the model or a tool."""
    reached = asyncio.Event()
    order = {"order": 7_000_000_000_000}

    def stop(request: Request, number: int) -> bool:
        stops = number == (3 if where == "arguments" else 1) and not reached.is_set()
        if stops:
            reached.set()
        return stops and where != "tool"

    async def main() -> None:
        first = (
            Reply(text=ANSWER)
            if where == "text"
            else Reply(text="See. ", calls=[Call("look", order)])
        )
        pause = Pause()
        desk = Support(tmp_path, [first, ANSWER], hangs=stop)
        desk.before_look = pause
        async with desk.app as app, joined(app) as client:
            handle = await begun(app)
            await (pause.reached if where == "tool" else reached).wait()
            await client.cancel(handle.run_id)
            with pytest.raises(RunCancelled):
                await handle.result()
            await settled(app)
            assert await ends(app) == {handle.run_id: ["cancelled"]}
            partial = shown(await view(app))
            assert len(partial) == 1
            assert (ANSWER if where == "text" else "See. ").startswith(partial[0])
            assert desk.calls == []
            pause.open = True
            assert await asked(app, "never mind") == ANSWER
            messages = desk.requests[-1].messages
            called = [
                c.tool_call_id
                for m in messages
                if isinstance(m, ModelResponse)
                for c in m.tool_calls
            ]
            returned = [p for m in messages for p in m.parts if p.part_kind == "tool-return"]
            assert len(called) == len(returned)
            assert desk.heard()[-1] == "never mind"

    run(main())


@pytest.mark.parametrize("how", ["edit", "regenerate"])
def test_an_edit_and_a_regeneration_are_runs_of_their_own(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        desk = Support(tmp_path, ["one", "two"])
        async with desk.app as app, joined(app) as client:
            sent = await client.send("hi")
            assert await (await posted(app, sent)).result() == "one"
            await sent.ended()
            question, answer = (m.codec_message_id for m in client.view.messages)
            if how == "edit":
                again = await client.edit(question, "ho")
            else:
                again = await client.regenerate(answer)
            other = await posted(app, again)
            await other.result()
            await again.ended()
            await settled(app)
            assert desk.heard() == (["ho"] if how == "edit" else ["hi"])
            assert len(desk.requests[-1].messages) == 1
            assert [info.run_id for info in await runs(app)][1] == other.run_id
            assert list((await ends(app)).values()) == [["complete"]] * 2
            assert len(shown(await view(app))) == 1

    run(main())


def test_a_later_message_of_an_answer_that_failed_is_given_anew(tmp_path: Path) -> None:
    """The model is asked, with what was said, and not with the texts that were to go on so."""
    desk = Support(tmp_path, [ANSWER])
    down = [True]

    async def word(text: str) -> AsyncIterator[str]:
        yield text

    @desk.app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> Any:
        if down:
            await turn.stream(word, "One moment. ")
            await turn.stream(word, "It ")
            raise ValueError(down.pop())
        return await desk.answer(context, turn), await turn.messages()

    async def main() -> None:
        async with desk.app as app, joined(app) as client:
            sent = await client.send("hi")
            with pytest.raises(RunFailed):
                await (await posted(app, sent, function="answer")).result()
            await sent.ended()
            *_, last = (message.codec_message_id for message in client.view.messages)
            again = await client.regenerate(last)
            said, conversation = await (await posted(app, again, function="answer")).result()
            assert [one["parts"][-1]["text"] for one in conversation] == ["hi", "One moment. "]
            assert (said, desk.heard()) == (ANSWER, ["hi"])
            assert len(desk.requests[-1].messages) == 1
            await again.ended()
            assert shown(await view(app)) == ["One moment. ", ANSWER]

    run(main())


def test_the_result_of_a_clients_tool_begins_what_is_to_be_answered(tmp_path: Path) -> None:
    script = [Reply(calls=[Call("locate", {})]), Reply(text=ANSWER)]
    place = ToolDefinition(name="locate", parameters_json_schema={"type": "object"})
    desk = Support(tmp_path, script, toolsets=[ExternalToolset([place], id="page")])

    async def main() -> None:
        async with desk.app as app, joined(app) as client:
            sent = await client.send("where am I?")
            await posted(app, sent)
            await sent.ended()
            result = ToolResult("call-1-1", output={"city": "Vienna"})
            answered = await client.answer(result)
            handle = await posted(app, answered)
            assert await handle.result() == ANSWER
            await answered.ended()
            assert tools(await view(app)) == [("call-1-1", "output-available", result.output)]
            assert len(desk.requests[-1].messages) == 3

    run(main())
