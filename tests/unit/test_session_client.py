"""What clients send, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.errors import (
    InputConflict,
    InvalidSessionArgument,
    RunNotObserved,
    SessionClosed,
    SessionError,
)
from perdure.session.client import ClientSession
from perdure.session.codec import TextCodec, ToolResult
from perdure.session.lifecycle import RunStatus
from perdure.session.run import AgentRun
from perdure.session.sent import Sent
from perdure.session.session import AgentSession
from tests.session_agents import VECTORS, Flaky, World, source, text, tool_call

Scene = Callable[[World, ClientSession, AgentSession], Coroutine[Any, Any, None]]


def play(scene: Scene) -> World:
    async def main() -> World:
        world = World()
        async with asyncio.timeout(60), world.client() as client, world.agent() as agent:
            await scene(world, client, agent)
        return world

    return asyncio.run(main())


async def refused(doing: Awaitable[Any], kind: type[SessionError], says: str = ".") -> None:
    with pytest.raises(kind, match=says) as caught:
        await doing
    assert (caught.value.code, caught.value.status) == (kind.code, kind.status)


async def answered(agent: AgentSession, sent: Sent, *words: str, run_id: str = "r") -> AgentRun:
    """Answer what was sent with a text a message, and end the run."""
    run = agent.create_run(sent.invocation, run_id=run_id)
    await run.start()
    for word in words:
        await run.pipe(source(text(word)))
    await run.end()
    await sent.ended()
    return run


async def called(agent: AgentSession, sent: Sent, *calls: str, ask: bool = True) -> None:
    """Answer what was sent with calls that somebody has to answer, and suspend the run."""
    run = agent.create_run(sent.invocation, run_id="r")
    await run.start()
    await run.pipe(source(tool_call(*calls, ask=ask)))
    await run.suspend()
    assert (await sent.ended()).lifecycle.status is RunStatus.SUSPENDED


def inputs(world: World) -> list[tuple[dict[str, str], dict[str, str], Any]]:
    sent = [d for d in world.log.deliveries if d.name == "ai-input"]
    return [(d.transport or {}, d.codec, d.data) for d in sent]


def shown(client: ClientSession) -> list[str]:
    parts = [part for folded in client.view.messages for part in folded.message["parts"]]
    return [part["text"] for part in parts if "text" in part]


def recorded(vector: str, index: int) -> tuple[dict[str, str], dict[str, str], Any]:
    lines = (VECTORS / f"{vector}.wire.jsonl").read_text("utf-8").splitlines()
    found = [m for m in map(json.loads, lines) if m.get("name") == "ai-input"][index]
    ai = found["extras"]["ai"]
    return ai["transport"], ai["codec"], found["data"]


def number(value: int) -> str:
    return f"00000000-0000-4000-8000-{value:012}"


def test_inputs_are_written_as_those_of_the_recordings() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        said = {"id": "dom-u1", "role": "user", "parts": [{"type": "text", "text": "Joke"}]}
        joke = await client.send(said, message_id="u1", event_id=number(1))
        async with world.agent(ids=["i", number(2)]) as other:
            await answered(other, joke, "ha")
        await client.regenerate(number(2), event_id=number(3))
        edit = {"id": "dom-u1-edit", "parts": [{"type": "text", "text": "Plan Porto"}]}
        await client.edit("u1", edit, message_id="u1-edit", event_id=number(3) + "b")

    joke, again, edited = inputs(play(scene))
    assert joke == recorded("regenerate", 0)
    wire, codec, data = recorded("regenerate", 1)
    assert again == ({**wire, "codec-message-id": number(3)}, codec, data)
    wire, codec, data = recorded("edit-fork", 1)
    assert edited == ({**wire, "event-id": number(3) + "b"}, codec, data)


def test_parts_are_written_together_and_what_the_wire_cannot_say_is_left_out() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        parts = [
            {"type": "text", "text": "look"},
            {"type": "file", "url": "data:,x", "mediaType": "text/plain", "filename": "lost"},
            {"type": "step-start"},
            {"type": "data-place", "id": "p", "data": {"x": 1}},
        ]
        sent = await client.send(parts)
        (folded,) = client.view.messages
        assert folded.codec_message_id == sent.input_codec_message_id
        kept = [{k: v for k, v in p.items() if k != "filename"} for p in parts]
        assert folded.message["parts"] == [p for p in kept if p["type"] != "step-start"]
        await client.send({"id": "m", "parts": []})
        assert client.view.messages[-1].message["parts"] == [{"type": "text", "text": ""}]

    world = play(scene)
    first = inputs(world)[0][0]
    assert inputs(world)[0][1]["messageId"] == first["codec-message-id"]
    assert all(wire == first for wire, _, _ in inputs(world)[:3])


def test_a_conversation_goes_on_where_it_stood() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        first = await client.send("hi")
        assert (first.run_id, first.run, shown(client)) == ("", None, ["hi"])
        await answered(agent, first, "hello")
        assert await first.started() == "r"
        assert [m.message["role"] for m in first.messages] == ["user", "assistant"]
        assert first.invocation.session_name == "room"
        await client.send("more")
        assert inputs(world)[1][0]["parent"] == first.messages[-1].codec_message_id
        await client.send("else", parent="")
        assert "parent" not in inputs(world)[2][0]
        assert shown(client) == ["hi", "hello", "more", "else"]

    play(scene)


def test_one_who_comes_late_goes_on_at_the_end_of_history() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        await answered(agent, await client.send("hi"), "hello")
        async with world.client("bob", codec=TextCodec()) as bob:
            assert bob.view.messages == []
            await bob.send("me too")
            assert [m.message["text"] for m in bob.view.messages] == ["me too"]
            await bob.load_older(1)
            assert [m.message["text"] for m in bob.view.messages] == ["hello", "me too"]
            await bob.load_history()
            assert [m.message["text"] for m in bob.view.messages] == ["hi", "hello", "me too"]
        assert shown(client) == ["hi", "hello", "me too"]

    play(scene)


def test_the_same_event_is_sent_once_from_any_process() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        first = await client.send("hi", event_id="e")
        await answered(agent, first, "hello")
        again = await client.send("hi", event_id="e")
        async with world.client() as other:
            elsewhere = await other.send("hi", parent="", event_id="e")
            assert elsewhere.run_id == "r"
            assert await elsewhere.started() == "r"
        for sent in (again, elsewhere):
            assert sent.input_codec_message_id == first.input_codec_message_id
        async with asyncio.TaskGroup() as group, world.client() as one, world.client() as two:
            for session in (one, two):
                group.create_task(session.send("both", event_id="f"))
            await world.until(lambda: len(inputs(world)) == 2)
            await world.until(lambda: shown(one) == shown(two) == ["both"])

    world = play(scene)
    assert [wire["event-id"] for wire, _, _ in inputs(world)] == ["e", "f"]


def test_something_else_under_the_same_event_id_is_refused() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        parts = [{"type": "text", "text": said} for said in ("one", "two")]
        sent = await client.send(parts, event_id="e")
        await answered(agent, sent, "a", "b")
        question, first, last = (m.codec_message_id for m in client.view.messages)
        edit = await client.edit(question, "ho", event_id="f")
        run = agent.create_run(edit.invocation, run_id="r2")
        await run.start()
        await edit.started()
        await client.steer("r2", "so", event_id="s")
        await client.regenerate(last, event_id="g")
        async with world.client() as late:
            await refused(late.send("one", event_id="e"), InputConflict, "sent as e")
            await refused(late.send(parts[::-1], event_id="e"), InputConflict)
            await refused(late.send("ho", event_id="f"), InputConflict)
            await refused(late.steer("r", "so", event_id="s"), InputConflict)
            await refused(late.regenerate(first, event_id="g"), InputConflict)
        async with world.client() as again:
            await again.load_history()
            await refused(again.send([*parts, *parts], event_id="e"), InputConflict)
            for sending in (
                again.send(parts, event_id="e"),
                again.edit(question, "ho", event_id="f"),
                again.regenerate(last, event_id="g"),
            ):
                assert (await sending).run_id is not None
            assert not (await again.steer("r2", "so", event_id="s")).consumed

    world = play(scene)
    assert [wire["event-id"] for wire, _, _ in inputs(world)] == ["e", "e", "f", "s", "g"]


def test_nobody_adds_to_what_another_has_said() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        sent = await client.send("pay bob 1 euro", message_id="mine")
        async with world.client("mallory") as other:
            await other.send(" and mallory 1000", message_id="mine")
        run = await answered(agent, sent, "paid")
        asked = run.view[0].message["parts"]
        assert asked == [{"type": "text", "text": "pay bob 1 euro"}]

    play(scene)


def test_a_message_of_several_parts_is_read_back_whole() -> None:
    async def slowly(deliveries: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for delivery in deliveries:
            yield delivery
            for _ in range(20):
                await asyncio.sleep(0)

    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        parts = [{"type": "text", "text": said} for said in ("one", "two")]
        channel = Flaky(world.log.channel("alice"))

        @asynccontextmanager
        async def subscribe(after: str | None = None) -> AsyncGenerator[Any]:
            async with channel.inner.subscribe(after) as deliveries:
                yield slowly(deliveries)

        channel.subscribe = subscribe
        async with world.client(channel=channel) as slow:
            await client.send("zero")
            await world.until(lambda: shown(slow) == ["zero"])
            await slow.send(parts, event_id="e")
            assert shown(slow) == ["zero", "one", "two"]

    play(scene)


def test_an_edit_is_shown_to_who_made_it_and_others_stay_where_they_are() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        async with world.client("bob") as bob:
            first = await client.send("Lisbon")
            await answered(agent, first, "sunny")
            edit = await client.edit(first.input_codec_message_id, "Porto")
            await answered(agent, edit, "wet", run_id="r2")
            assert shown(client) == ["Porto", "wet"]
            last = world.log.deliveries[-1].version
            await world.until(lambda: bob._connection.reader.cursor == last)
            assert shown(bob) == ["Lisbon", "sunny"]
        await refused(client.edit("nobody's", "x"), InvalidSessionArgument, "no person has sent")
        reply = client.view.messages[1].codec_message_id
        await refused(client.edit(reply, "x"), InvalidSessionArgument, "no person has sent")

    play(scene)


def test_an_answer_is_asked_for_anew_from_any_of_its_messages_on() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        first = await client.send("Joke")
        await answered(agent, first, "one", "two")
        one, two = (m.codec_message_id for m in client.view.messages[1:])
        async with world.client("bob") as bob:
            again = await bob.regenerate(two)
            await answered(agent, again, "three", run_id="r2")
        await client.regenerate(one)
        asked = first.input_codec_message_id
        await world.write(
            "ai-input",
            {"role": "user", "codec-message-id": "s", "event-id": "s", "run-id": "r2"},
            {"kind": "user-message", "partType": "text"},
            "steering",
        )
        await world.until(lambda: client._writer.sent_as("s") is not None)
        for target in (asked, "s", "nobody's"):
            await refused(client.regenerate(target), InvalidSessionArgument, "no agent has written")
        assert shown(client) == ["Joke", "one", "three", "steering"]
        tails = [(wire["parent"], wire["msg-regenerate"]) for wire, _, _ in inputs(world)[1:3]]
        assert tails == [(one, two), (asked, one)]

    play(scene)


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_resumes_the_run_once(approved: bool) -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        await called(agent, await client.send("Delete prod"), "c1", "c2")
        async with world.client("bob") as bob:
            said = await bob.approve("c1", approved, "ok", event_id="a")
            assert (said.run_id, said.run is not None) == ("r", True)
            assert (await bob.approve("c1", approved, "ok", event_id="a")).event_id == "a"
            await refused(bob.approve("c1", not approved, event_id="a"), InputConflict)
            run = agent.create_run(said.invocation)
            started, ended = (asyncio.create_task(w) for w in (said.started(), said.ended()))
            await asyncio.sleep(0)
            assert (started.done(), ended.done()) == (False, False)
            await run.start()
            assert await started == "r"
            told = run.answers[0].payload
            assert told == {"toolCallId": "c1", "approved": approved, "reason": "ok"}
            await client.approve("c2", True)
            await run.end()
            assert (await ended).lifecycle.status is RunStatus.COMPLETE
            again = await bob.approve("c1", approved, event_id="a")
            assert again.event_id == "a"
        await refused(client.approve("c1", True), InvalidSessionArgument, "has ended")
        await refused(client.approve("c9", True), InvalidSessionArgument, "no run that goes on")
        state = client.view.messages[1].message["parts"][1]["state"]
        assert state == ("approval-responded" if approved else "output-denied")

    world = play(scene)
    assert len(inputs(world)) == 3
    assert inputs(world)[1][0]["role"] == "user"


def test_the_result_of_a_clients_tool_forks_the_conversation() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        first = await client.send("Where am I?")
        await called(agent, first, "c1", "c2", ask=False)
        results = [ToolResult("c1", "here"), ToolResult("c2", error="no")]
        sent = await client.answer(results, event_id="a")
        assert (sent.run_id, sent.run) == ("", None)
        left = client.answer(results)
        await refused(left, InvalidSessionArgument, "no run that goes on")
        await answered(agent, sent, "Here.", run_id="r2")
        assert (await client.answer(results, event_id="a")).run_id == "r2"
        other = [ToolResult("c1", "there"), results[1]]
        await refused(client.answer(other, event_id="a"), InputConflict)
        assert [run.run_id for run in client.view.runs] == ["r2"]
        parts = [p for m in sent.messages[1:] for p in m.message["parts"] if p["type"] != "text"]
        states = [p["state"] for p in parts if "state" in p]
        assert states == ["output-available", "output-error"]
        assert shown(client) == ["Where am I?", "Here."]
        assert world.seen()["messages"] == [
            {"codecMessageId": m.codec_message_id, "message": m.message} for m in sent.messages
        ]

    wires = [wire for wire, _, _ in inputs(play(scene))]
    one, two = wires[1:]
    assert (one["role"], one["supersedes"], one["parent"]) == (
        "assistant",
        "r",
        wires[0]["codec-message-id"],
    )
    assert one["codec-message-id"] == two["codec-message-id"]
    assert "run-id" not in one


def test_the_result_of_a_clients_tool_goes_on_in_place_where_asked() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        await called(agent, await client.send("Where am I?"), "c1", ask=False)
        sent = await client.answer(ToolResult("c1", {"at": "home"}), in_place=True)
        run = await answered(agent, sent, "Home.")
        assert run.run_id == "r"
        assert [answer.payload for answer in run.answers] == [
            {"toolCallId": "c1", "output": {"at": "home"}}
        ]
        assert [run.run_id for run in client.view.runs] == ["r"]
        done = ToolResult("c1", 1)
        await refused(client.answer(done), InvalidSessionArgument, "has ended")
        await refused(client.answer([]), InvalidSessionArgument, "no result")
        text_client = world.client("bob", codec=TextCodec())
        async with text_client:
            await refused(text_client.answer(done), InvalidSessionArgument, "no run that goes on")

    play(scene)


def test_whoever_waits_is_refused_after_a_time_and_when_the_session_is_closed() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession) -> None:
        sent = await client.send("hi")
        waiting = asyncio.create_task(sent.started(5.0))
        await world.clock.until_sleeping()
        world.clock.advance(5.0)
        await refused(waiting, RunNotObserved)
        waiting = asyncio.create_task(sent.ended())
        told = [0]

        async def count() -> None:
            async for _ in client.changes():
                told[0] += 1

        counting = asyncio.create_task(count())
        await world.until(lambda: told[0] == 1)
        for _ in range(3):
            await client.send("more")
        await world.until(lambda: told[0] > 1)
        await client.close()
        await refused(waiting, SessionClosed)
        await counting
        for doing in (
            client.send("x"),
            client.cancel("r"),
            client.load_history(),
            client.connect(),
        ):
            await refused(doing, SessionClosed)

    play(scene)
