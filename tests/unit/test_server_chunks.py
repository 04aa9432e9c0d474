"""The stream of chat chunks: whatever a page is told, it comes to what the conversation is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure.errors import SessionError
from perdure.server.run_chunks import RunChunks
from perdure.session.client import ClientSession
from perdure.session.codec import ToolResult, UiMessageCodec
from perdure.session.lifecycle import RunStatus
from perdure.session.message import WireMessage
from perdure.session.reader import SessionReader
from perdure.session.run import SessionInvocation
from perdure.session.run_node import RunNode
from perdure.testing.session_oracle import Recording
from tests.session_agents import ASKED, VECTORS, World, source, text, tool_call

NAMES = sorted(path.name.split(".")[0] for path in VECTORS.glob("*.wire.jsonl"))


class Page:
    """The message that a page has, after the rules of version 7 of the AI SDK."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.open: dict[tuple[str, str], dict[str, Any]] = {}
        self.ends: list[str] = []

    def take(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        family, _, verb = kind.rpartition("-")
        if kind == "start-step":
            self.parts.append({"type": "step-start"})
        elif kind == "reset-step":
            while self.parts and self.parts[-1]["type"] != "step-start":
                self.parts.pop()
            self.open.clear()
        elif family in ("text", "reasoning"):
            self._text(family, verb, chunk)
        elif "toolCallId" in chunk or kind == "tool-approval-response":
            self._tool(kind, chunk)
        elif kind in ("finish", "abort", "error"):
            self.ends.append(kind)
        elif kind.startswith("data-") and not chunk.get("transient"):
            same = [part for part in self.parts if part.get("id", 0) == chunk.get("id", 1)]
            same[0].update(chunk) if same else self.parts.append(dict(chunk))
        elif kind in ("file", "source-url", "source-document"):
            self.parts.append(dict(chunk))

    def _text(self, family: str, verb: str, chunk: dict[str, Any]) -> None:
        key = (family, chunk["id"])
        if verb == "start":
            self.open[key] = {"type": family, "text": ""}
            self.parts.append(self.open[key])
        elif verb == "delta":
            self.open[key]["text"] += chunk["delta"]  # a page breaks off where it is not open
        else:
            del self.open[key]

    def _tool(self, kind: str, chunk: dict[str, Any]) -> None:
        if kind == "tool-approval-response":
            part = next(p for p in self.parts if p.get("approval") == chunk["approvalId"])
            part["state"] = "approval-responded" if chunk["approved"] else "output-denied"
            return
        call = chunk["toolCallId"]
        found = next((p for p in reversed(self.parts) if p.get("toolCallId") == call), None)
        if found is None:
            assert kind in ("tool-input-start", "tool-input-error")
            self.parts.append(found := {"type": "tool", "toolCallId": call})
        found |= {name: chunk[name] for name in ("input", "output", "errorText") if name in chunk}
        states = {
            "tool-input-available": "input-available",
            "tool-approval-request": "approval-requested",
            "tool-output-available": "output-available",
            "tool-output-denied": "output-denied",
        }
        fails = kind.endswith("-error")
        found["state"] = "output-error" if fails else states.get(kind, "input-streaming")
        found["approval"] = chunk.get("approvalId", found.get("approval"))


def shown(parts: list[dict[str, Any]]) -> list[Any]:
    """Return what a person sees of parts."""
    seen: list[Any] = []
    if parts and parts[-1]["type"] == "step-start":
        parts = parts[:-1]  # a step that was taken back, or has nothing yet, shows nothing
    for part in parts:
        if "toolCallId" in part:
            seen.append((part["toolCallId"], part["state"], part.get("output")))
        else:
            seen.append({key: part[key] for key in ("type", "text", "url", "data") if key in part})
    return json.loads(json.dumps(seen))


def folded(run: RunNode) -> list[Any]:
    messages = [m.message for m in run.messages() if m.message["role"] == "assistant"]
    return shown([part for message in messages for part in message["parts"]])


class Follower:
    """A page that follows one run live, and resumes when it is told to."""

    def __init__(self, *, resets: bool = True) -> None:
        self.resets = resets
        self.resumed = 0
        self.told: list[dict[str, Any]] = []
        self._begin()

    def _begin(self) -> None:
        self.page, self.chunks = Page(), RunChunks(UiMessageCodec(), resets=self.resets)

    def follow(self, run: RunNode) -> None:
        if self.chunks.over and self.page.ends != ["error"]:
            return
        new = self.chunks.advance(run)
        self.told += new
        for chunk in new:
            self.page.take(chunk)
        if any(chunk["type"] == "data-perdure-resume" for chunk in new):
            self.resumed += 1
            self._begin()
            self.follow(run)


def followed(deliveries: list[WireMessage], *, resets: bool = True) -> dict[str, Follower]:
    """Follow every run of a recording; after each delivery the page has what is to be seen."""
    reader = SessionReader(UiMessageCodec())
    followers: dict[str, Follower] = {}
    for delivery in deliveries:
        reader.receive(delivery)
        for node in reader.tree.nodes:
            if isinstance(node, RunNode):
                follower = followers.setdefault(node.key, Follower(resets=resets))
                follower.follow(node)
                if not follower.chunks.over:
                    assert shown(follower.page.parts) == folded(node)
    return followers


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_that_follows_live_has_what_the_conversation_is(name: str, resets: bool) -> None:
    recording = Recording.read((VECTORS / f"{name}.wire.jsonl").read_text("utf-8"))
    followers = followed(recording.deliveries, resets=resets)
    assert followers
    assert all(len(follower.page.ends) <= 1 for follower in followers.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_that_comes_late_is_told_the_same(name: str) -> None:
    recording = Recording.read((VECTORS / f"{name}.wire.jsonl").read_text("utf-8"))
    reader = SessionReader(UiMessageCodec())
    for messages in recording.history(len(recording.deliveries), 4):
        reader.load(messages, more=True)
    for node in reader.tree.nodes:
        if isinstance(node, RunNode):
            follower = Follower()
            follower.follow(node)
            assert shown(follower.page.parts) == folded(node)
            assert follower.resumed == 0


def played(scene: Any) -> World:
    async def main() -> World:
        world = World()
        await world.say("hi")
        async with asyncio.timeout(60), world.agent() as session:
            run = session.create_run(ASKED, run_id="r", invocation_id="i")
            await run.start()
            await scene(world, run)
        return world

    return asyncio.run(main())


async def attempt(run: Any, chunks: list[Any], then: Exception | None = None) -> None:
    async with run.create_step(step_id="s") as step:
        await step.pipe(source(chunks, then=then))


def kinds(world: World, **options: Any) -> list[str]:
    (follower,) = followed(world.log.deliveries, **options).values()
    return [chunk["type"] for chunk in follower.told]


async def retried(world: World, run: Any) -> None:
    await attempt(run, text("Once upon a dea", stream="a")[:-3], SessionError("dead"))
    await attempt(run, text("Once upon a time.", stream="b"))
    await run.end()


def test_an_attempt_that_another_replaces_is_taken_back_within_the_message() -> None:
    told = kinds(played(retried))
    assert told.count("start-step") == 1
    at = told.index("reset-step")
    assert told[at + 1 :] == ["text-start", "text-delta", "text-end", "finish-step", "finish"]


def test_a_page_that_knows_no_resets_is_told_to_resume_once() -> None:
    (follower,) = followed(played(retried).log.deliveries, resets=False).values()
    told = [chunk["type"] for chunk in follower.told]
    assert (follower.resumed, told.count("reset-step")) == (1, 0)
    assert follower.page.ends == ["finish"]


def test_several_messages_of_a_run_are_the_steps_of_one() -> None:
    async def scene(_: World, run: Any) -> None:
        await run.pipe(source(text("one", stream="a", message_id="m1")))
        await run.pipe(source(text("two", stream="a", message_id="m2")))
        await run.end()

    told = kinds(played(scene))
    assert [told.count(kind) for kind in ("start", "start-step", "finish-step", "finish")] == [
        0,
        2,
        2,
        1,
    ]


def test_a_replaced_step_behind_another_one_is_told_by_resuming() -> None:
    async def scene(_: World, run: Any) -> None:
        await attempt(run, text("one", stream="a"))
        await run.pipe(source(text("two", stream="b")))
        await attempt(run, text("ONE", stream="c"))
        await run.end()

    (follower,) = followed(played(scene).log.deliveries).values()
    assert follower.resumed == 1


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        (RunStatus.COMPLETE, "finish"),
        (RunStatus.CANCELLED, "abort"),
        (RunStatus.ERROR, "error"),
    ],
)
def test_every_end_is_told_and_leaves_nothing_open(reason: RunStatus, ends: str) -> None:
    async def scene(_: World, run: Any) -> None:
        step = run.create_step(step_id="s")
        await step.start()
        await step.pipe(source(text("half")[:4], then=RuntimeError("broken")))
        await run.end(reason, error=RuntimeError("out of tries"))

    (follower,) = followed(played(scene).log.deliveries).values()
    assert follower.page.ends == [ends]
    assert follower.page.open == {}
    assert shown(follower.page.parts)[-1]["text"] == "half"
    last = follower.told[-1]
    assert last.get("errorText", "out of tries") == "out of tries"


def test_a_run_that_asks_finishes_its_message_and_goes_on_in_it() -> None:
    async def asks(_: World, run: Any) -> None:
        await run.pipe(source(tool_call("call-1")))
        await run.suspend()

    world = played(asks)
    asked = len(world.log.deliveries)
    assert kinds(world)[-3:] == ["tool-approval-request", "finish-step", "finish"]

    async def answers() -> None:
        message = next(d for d in world.log.deliveries if d.codec.get("kind") == "tool-input")
        await world.answer("r", message.header("codec-message-id"), "e2")
        async with world.agent() as session:
            run = session.create_run(SessionInvocation("e2"), run_id="r", invocation_id="i2")
            await run.start()
            said = {"type": "tool-output-available", "toolCallId": "call-1", "output": "gone"}
            await run.pipe(source([said]))
            await run.pipe(source(text("Deleted.")))
            await run.end()

    asyncio.run(answers())
    reader = SessionReader(UiMessageCodec())
    for delivery in world.log.deliveries[:asked]:
        reader.receive(delivery)
    run = reader.tree.run("r")
    assert run is not None
    chunks = RunChunks(UiMessageCodec())
    chunks.go_on()
    chunks.skip(run, None)
    assert chunks.advance(run) == []
    told: list[str] = []
    for delivery in world.log.deliveries[asked:]:
        reader.receive(delivery)
        told += [chunk["type"] for chunk in chunks.advance(run)]
    assert told[:2] == ["tool-output-available", "start-step"]
    assert told[-2:] == ["finish-step", "finish"]


def test_a_run_in_the_place_of_another_tells_all_that_this_had_come_to() -> None:
    async def asks(_: World, run: Any) -> None:
        await run.pipe(source(text("Let me see.", stream="a")[:-1]))
        await run.pipe(source(tool_call("call-1", ask=False)))
        await run.suspend()

    world = played(asks)

    async def answers() -> None:
        alice = world.log.channel("alice")
        async with ClientSession(alice, UiMessageCodec(), client_id="alice") as client:
            sent = await client.answer(ToolResult("call-1", {"deleted": True}))
        async with world.agent() as session:
            run = session.create_run(sent.invocation, run_id="r2", invocation_id="i2")
            await run.start()
            await run.pipe(source(text("Deleted.")))
            await run.end()

    asyncio.run(answers())
    followers = followed(world.log.deliveries)
    late = Follower()
    reader = SessionReader(UiMessageCodec())
    reader.load(world.log.page(None, 1000).messages, more=False)
    run = reader.tree.run("r2")
    assert run is not None
    late.follow(run)
    assert shown(late.page.parts) == folded(run) == shown(followers["r2"].page.parts)
    assert ("call-1", "output-available", {"deleted": True}) in [
        tuple(part) for part in shown(late.page.parts) if isinstance(part, list)
    ]


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_is_told_to_those_who_watch(resets: bool, approved: bool) -> None:
    async def asks(_: World, run: Any) -> None:
        await run.pipe(source(tool_call("call-1")))
        await run.suspend()

    world = played(asks)

    async def answers() -> None:
        alice = world.log.channel("alice")
        async with ClientSession(alice, UiMessageCodec(), client_id="alice") as client:
            await client.approve("call-1", approved, "because")

    asyncio.run(answers())
    reader = SessionReader(UiMessageCodec())
    reader.load(world.log.page(None, 1000).messages, more=False)
    run = reader.tree.run("r")
    assert run is not None
    late = Follower(resets=resets)
    late.follow(run)
    if resets or not approved:
        assert shown(late.page.parts) == folded(run)
    else:  # an older page hears of it by what the tool comes to
        assert shown(late.page.parts)[-1][1] == "approval-requested"
