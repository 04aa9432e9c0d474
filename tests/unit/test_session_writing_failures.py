"""What is lost on the way to a channel is written again, and as nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

import pytest

from perdure.errors import (
    ContinuityLost,
    HistoryFailed,
    LifecycleNotPublished,
    MissingSerial,
    RunNotObserved,
    SessionError,
    StreamNotRepaired,
    SubscriptionFailed,
)
from perdure.session.channel import HistoryPage
from perdure.session.message import Action
from perdure.session.piping import PipeResult
from perdure.session.run import AgentRun
from perdure.testing.manual_clock import ManualClock
from tests.session_agents import ASKED, Flaky, World, source, text

Scene = Callable[[World, Flaky, AgentRun], Coroutine[Any, Any, None]]


def play(scene: Scene) -> tuple[World, Flaky]:
    """Play a scene with a run that is open."""

    async def main() -> tuple[World, Flaky]:
        world = World()
        flaky = Flaky(world.log.channel("agent"))
        world.clock = Impatient()
        async with asyncio.timeout(60), world.agent(channel=flaky) as session:
            await world.say("hi")
            run = session.create_run(ASKED, run_id="r", invocation_id="i")
            await run.start()
            await scene(world, flaky, run)
        return world, flaky

    return asyncio.run(main())


class Impatient(ManualClock):
    """A clock on which short waits are over at once."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds if seconds > 1 else 0)


async def piped(run: AgentRun, *fragments: str) -> PipeResult:
    """Pipe an answer, each fragment once the one before has been sent or has failed."""

    async def slowly() -> AsyncIterator[Any]:
        for chunk in text(*fragments):
            yield chunk
            for _ in range(5):
                await asyncio.sleep(0)

    return await run.pipe(slowly())


@pytest.mark.parametrize("how", ["lost", "done"])
def test_a_publish_is_tried_again_as_the_same_message(how: str) -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        flaky.failing["publish"] = [how, how, how, "", how, "", how]
        async with run.create_step() as step:
            await step.pipe(source(text("Hi")))
        flaky.failing["publish"] = [how, how]
        await run.end()

    world, flaky = play(scene)
    names = [name for name in world.names() if name.startswith("ai-run") or "step-" in name]
    assert names == ["ai-run-start", "ai-step-start", "ai-step-end", "ai-run-end"]
    assert world.texts() == ["hi", "Hi"]
    starts = {d.message_id for d in flaky.drafts if d.name == "ai-step-start"}
    assert len(starts) == 1
    assert len({d.message_id for d in flaky.drafts}) == len(world.names()) - 1


def test_an_end_that_was_not_published_is_said_again_and_not_otherwise() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        flaky.failing["publish"] = ["lost", "lost", "lost", "done"]
        with pytest.raises(LifecycleNotPublished, match="try again"):
            await run.end("complete")
        assert run.is_open
        await run.end("cancelled")
        await run.end()

    world, _ = play(scene)
    (end,) = world.headers("ai-run-end")
    assert end["run-reason"] == "complete"


def test_what_cannot_be_published_leaves_no_step_open() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        flaky.failing["publish"] = ["refused"]
        result = await run.pipe(source(text("Hi")))
        assert str(result.error) == "not allowed"
        flaky.failing["publish"] = ["refused"]
        with pytest.raises(LifecycleNotPublished, match="not allowed"):
            await run.suspend()
        await run.pipe(source(text("Ho")))
        await run.end()

    world, _ = play(scene)
    assert world.texts() == ["hi", "Ho"]
    assert "ai-run-suspend" not in world.names()


LOSSES = [
    {"append": ["lost"]},
    {"append": ["done"]},
    {"append": ["", "lost", ""]},
    {"append": ["", "done", "done"]},
    {"append": ["", "lost"], "update": ["lost", "lost", "done"]},
    {"append": ["", "", "", "lost"]},
    {"append": ["", "", "", "done"], "update": ["lost"]},
    {"append": ["lost"] * 9},
]


@pytest.mark.parametrize("failing", LOSSES, ids=range(len(LOSSES)))
def test_lost_appends_are_made_up_for_before_the_stream_closes(
    failing: dict[str, list[str]],
) -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        flaky.failing = {kind: list(planned) for kind, planned in failing.items()}
        assert (await piped(run, "aaa", "BBB", "ccc")).error is None
        flaky.failing.clear()
        await run.end()

    world, _ = play(scene)
    for joined in range(len(world.log.deliveries) + 1):
        texts = world.seen(joined=joined)["messages"][1]["message"]["parts"]
        assert texts == [{"type": "step-start"}, {"type": "text", "text": "aaaBBBccc"}]
    assert simple_reader(world) == "aaaBBBccc"


def simple_reader(world: World) -> str:
    """Return what a reader has who takes only what continues its text, and nothing after the end.

    Most readers in browsers do that.
    """
    text, closed = "", False
    for delivery in world.log.deliveries:
        if delivery.codec.get("kind") != "text" or delivery.action == "message.create" or closed:
            continue
        if delivery.action == "message.append":
            text += delivery.data
        else:
            assert delivery.data.startswith(text)
            text = delivery.data
        closed = delivery.header("status") == "complete"
    assert closed
    return text


def test_a_stream_that_cannot_be_repaired_fails_the_pipe() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        flaky.failing = {"append": ["lost"], "update": ["lost"] * 4}
        result = await piped(run, "aaa", "BBB")
        assert isinstance(result.error, StreamNotRepaired)
        assert result.error.code == 104000

    world, _ = play(scene)
    assert world.headers("ai-step-end")[0]["step-reason"] == "failed"


def test_fragments_that_come_while_one_is_sent_go_together() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        await run.pipe(source(text(*"a long word")))

    world, _ = play(scene)
    appended = [d.data for d in world.log.deliveries if d.action is Action.APPEND]
    assert appended == ["a long word", ""]


def test_what_is_much_at_once_goes_in_pieces() -> None:
    """Channels bound what one message is; so does the wire of some."""

    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        result = await run.pipe(source(text("a" * 100_000, "b" * 100_000)))
        assert result.error is None

    world, _ = play(scene)
    appends = [each.data for each in world.log.deliveries if each.action is Action.APPEND]
    assert "".join(appends) == "a" * 100_000 + "b" * 100_000
    assert max(map(len, appends)) < 40_000


def test_a_channel_that_gives_no_serial_is_refused() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        async def nothing(drafts: Any) -> list[str]:
            return []

        flaky.publish = nothing  # type: ignore[method-assign]
        with pytest.raises(MissingSerial, match="ai-step-start"):
            await run.create_step().start()

    play(scene)


def test_history_is_tried_again_and_then_given_up() -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        answers = [False, False, False, True, False, False, False, False]

        async def broken(before: str | None = None, limit: int = 100) -> HistoryPage:
            if answers.pop(0):
                return await flaky.inner.history(before, limit)
            raise HistoryFailed("no answer")

        flaky.history = broken
        async with world.agent(channel=flaky) as session:
            await session.adopt_run(run_id="r", invocation_id="i2").load(1000)
        async with world.agent(channel=flaky) as session:
            with pytest.raises(RunNotObserved, match="history") as caught:
                await session.adopt_run(run_id="r", invocation_id="i3").load(1000)
        assert isinstance(caught.value.__cause__, HistoryFailed)

    play(scene)


@pytest.mark.parametrize(
    ("broken_by", "reported"),
    [(ContinuityLost, ContinuityLost), (OSError, SubscriptionFailed), (StopAsyncIteration, None)],
)
def test_what_was_missed_is_read_again(
    broken_by: type[Exception], reported: type[SessionError] | None
) -> None:
    async def scene(world: World, flaky: Flaky, run: AgentRun) -> None:
        losing = Flaky(world.log.channel("agent"))
        subscribe = losing.subscribe
        attached: list[str | None] = []
        broken = Broken(world, broken_by)

        def once(after: str | None = None) -> Any:
            attached.append(after)
            return subscribe(after) if len(attached) > 1 else broken

        losing.subscribe = once
        async with world.agent(channel=losing) as session:
            adopted = session.adopt_run(run_id="r", invocation_id="i2")
            await adopted.load()
            assert not adopted.cancelled.is_set()
            broken.lost.set()
            await adopted.cancelled.wait()
        assert [type(error) for error in world.errors] == [reported or ContinuityLost]
        assert attached == [None, None]

    play(scene)


class Broken:
    """Deliveries that break off, while a cancel is missed."""

    def __init__(self, world: World, error: type[Exception]) -> None:
        self.world = world
        self.error = error
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.world.cancel(run_id="r")

    def __aiter__(self) -> Broken:
        return self

    async def __anext__(self) -> Any:
        await self.lost.wait()
        raise self.error
