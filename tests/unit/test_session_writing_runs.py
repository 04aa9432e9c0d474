"""Runs and steps: what may be done when, and what is published for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from perdure.errors import (
    InvalidSessionArgument,
    RunNotObserved,
    SessionCancelled,
    SessionClosed,
    SessionError,
    SubscriptionFailed,
)
from perdure.session.attempts import StepStatus
from perdure.session.lifecycle import RunStatus
from perdure.session.run import AgentRun, SessionInvocation
from perdure.session.session import AgentSession
from tests.session_agents import ASKED, World, source, text

Scene = Callable[[World], Coroutine[Any, Any, None]]


def play(scene: Scene) -> World:
    async def main() -> World:
        world = World()
        async with asyncio.timeout(60):
            await scene(world)
        return world

    return asyncio.run(main())


async def opened(world: World, session: AgentSession) -> AgentRun:
    await world.say("hi")
    run = session.create_run(ASKED, run_id="r", invocation_id="i")
    await run.start()
    return run


def adopt(session: AgentSession, invocation_id: str = "i2") -> AgentRun:
    return session.adopt_run(run_id="r", invocation_id=invocation_id, trigger=ASKED)


async def refused(doing: Awaitable[Any], kind: type[SessionError], says: str = ".") -> None:
    with pytest.raises(kind, match=says) as caught:
        await doing
    assert (caught.value.code, caught.value.status) == (kind.code, kind.status)


def test_nothing_works_before_connect_or_with_empty_ids() -> None:
    async def scene(world: World) -> None:
        session = world.agent()
        for run_id, invocation_id in (("", "i"), ("r", "")):
            with pytest.raises(InvalidSessionArgument, match="empty"):
                session.create_run(ASKED, run_id=run_id, invocation_id=invocation_id)
            with pytest.raises(InvalidSessionArgument, match="empty"):
                session.adopt_run(run_id=run_id, invocation_id=invocation_id)
        run = session.create_run(ASKED)
        for doing in (run.start(), adopt(session).load(), run.suspend(), run.end()):
            await refused(doing, InvalidSessionArgument, "not connected")
        await session.detach()
        await refused(session.connect(), SessionClosed)
        await refused(run.start(), SessionClosed)

    assert play(scene).names() == []


def test_a_run_takes_nothing_before_it_is_open_nor_after_its_end() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = session.create_run(ASKED, run_id="r", invocation_id="i")
            step = run.create_step()
            for doing in (run.pipe(source([])), step.start(), run.suspend(), run.end()):
                await refused(doing, InvalidSessionArgument, "not open")
            await refused(run.load(), InvalidSessionArgument, "start")
            await world.say("hi")
            await run.start()
            await run.start()
            await refused(step.send({"type": "start"}), InvalidSessionArgument, "not open")
            await refused(step.pipe(source([])), InvalidSessionArgument, "not open")
            with pytest.raises(InvalidSessionArgument, match="complete"):
                await run.end("finished")
            await run.end("cancelled")
            await run.end()
            await run.suspend()
            for doing in (run.pipe(source([])), run.create_step().start()):
                await refused(doing, InvalidSessionArgument, "ended here")

    assert play(scene).names() == ["ai-input user-message", "ai-run-start", "ai-run-end"]


def test_a_run_that_ended_elsewhere_takes_nothing_and_ends_once() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as first, world.agent() as second:
            run = await opened(world, first)
            other = adopt(second)
            await other.load()
            step = run.create_step()
            await other.end("error", error=SessionClosed("gave up"))
            await world.until(lambda: run.status is RunStatus.ERROR)
            await refused(step.start(), InvalidSessionArgument, "has ended")
            await refused(run.pipe(source([])), InvalidSessionArgument, "has ended")
            await run.end()
        async with world.agent() as third:
            await refused(adopt(third).load(), InvalidSessionArgument, r"has ended \(error\)")
            again = third.create_run(ASKED, run_id="r")
            await refused(again.start(), InvalidSessionArgument, "has ended")

    world = play(scene)
    (end,) = world.headers("ai-run-end")
    assert (end["error-code"], end["error-message"]) == ("104004", "gave up")
    assert len(world.headers("ai-run-start")) == 1


def test_one_step_at_a_time_and_runs_side_by_side() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            waiting = asyncio.Event()
            piping = asyncio.create_task(run.pipe(source(text("a")[:-3], then=waiting)))
            await waiting.wait()
            other = run.create_step()
            for doing in (other.start(), run.pipe(source([])), run.suspend()):
                await refused(doing, InvalidSessionArgument, "another step")
            beside = session.create_run(ASKED, run_id="beside")
            await beside.start()
            assert (await beside.pipe(source(text("b")))).error is None
            run.cancelled.set()
            await piping
            await other.start()
            await refused(run.create_step().start(), InvalidSessionArgument, "another step")
            await other.end()
            await run.end("cancelled")
            await beside.end()

    assert play(scene).names().count("ai-step-start") == 3


def test_step_ids_are_reused_after_a_failure_and_count_from_nought() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            broken = await run.pipe(source(text("half")[:-3], then=ValueError("no")))
            assert str(broken.error) == "no"
            retry = run.create_step()
            assert retry.step_id == "i-step-0"
            async with retry:
                await retry.pipe(source(text("whole")))
            assert run.create_step().step_id == "i-step-1"
            assert run.create_step(step_id="mine").step_id == "mine"
            with pytest.raises(InvalidSessionArgument, match="empty"):
                run.create_step(step_id="")
            assert (await run.pipe(source([]))).error is None
            failing = run.create_step()
            with pytest.raises(ZeroDivisionError):
                async with failing:
                    raise ZeroDivisionError
            await failing.end()
            await run.end()

    world = play(scene)
    assert world.texts() == ["hi", "whole"]
    steps = world.seen()["runs"][0]["steps"]
    assert [(s["stepId"], s["status"], s["attemptCount"]) for s in steps] == [
        ("i-step-0", "complete", 2),
        ("i-step-3", "failed", 1),
    ]


def test_an_empty_retry_blanks_the_step_at_its_start() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            async with run.create_step(step_id="s", client_id="bob") as step:
                await step.pipe(source(text("dead")))
        async with world.agent() as session:
            run = adopt(session)
            await run.load()
            assert world.texts() == ["hi", "dead"]
            await run.create_step(step_id="s").start()
            assert world.texts() == ["hi"]

    world = play(scene)
    assert [h["step-client-id"] for h in world.headers("ai-step-start")] == ["bob", "bob"]


def test_detaching_publishes_nothing_and_ending_a_session_ends_its_runs() -> None:
    async def detaches(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            step = run.create_step()
            await step.start()
            run.detach()
            before = len(world.log.deliveries)
        assert len(world.log.deliveries) == before
        await refused(step.send({"type": "start"}), SessionClosed)
        await refused(run.end(), SessionClosed)
        again = world.agent()
        await again.connect()
        run = adopt(again)
        await run.load()
        again.create_run(ASKED)
        await run.create_step().start()
        await again.end()
        await again.end()
        assert run.cancelled.is_set()

    world = play(detaches)
    assert world.names()[-2:] == ["ai-step-end", "ai-run-end"]
    assert world.headers("ai-step-end")[0]["step-reason"] == "cancelled"
    assert world.headers("ai-run-end")[0]["run-reason"] == "cancelled"


def test_load_waits_for_a_live_start_and_fails_so_that_it_can_be_tried_again() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session, world.agent() as other:
            run = adopt(session)
            loading = asyncio.create_task(run.load(timeout_seconds=5))
            await world.clock.until_sleeping()
            world.clock.advance(5)
            await refused(loading, RunNotObserved, "try again")
            loading = asyncio.create_task(run.load())
            await world.clock.until_sleeping()
            await opened(world, other)
            await loading
            assert world.clock.sleeping == []
            waiting = asyncio.create_task(session.adopt_run(run_id="x", invocation_id="i").load())
            await world.clock.until_sleeping()
            await session.detach()
            await refused(waiting, SessionClosed)

    play(scene)


def test_a_suspended_run_is_not_adopted_but_resumed() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            await run.suspend()
            assert run.status is RunStatus.SUSPENDED
            await refused(adopt(session).load(), InvalidSessionArgument, "suspended")
            await world.say("go on", **{"run-id": "r", "event-id": "e2", "run-client-id": "bob"})
            resumed = session.create_run(SessionInvocation("e2"), run_id="ignored")
            await resumed.start()
            assert (resumed.run_id, resumed.status) == ("r", RunStatus.ACTIVE)
            await resumed.end()

    world = play(scene)
    # The run stays whose it was, whoever resumes it.
    (resume,) = world.headers("ai-run-resume")
    assert resume["run-client-id"] == "alice"
    assert world.seen()["runs"][0]["status"] == "complete"


def test_a_start_that_is_tried_again_is_not_published_again() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            await opened(world, session)
        async with world.agent() as session:
            run = session.create_run(ASKED, run_id="r", invocation_id="i")
            await run.start()
            await run.end()

    assert play(scene).names().count("ai-run-start") == 1


@pytest.mark.parametrize("named", ["run_id", "input_codec_message_id"])
def test_a_cancel_while_nobody_is_attached_is_found(named: str) -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            await opened(world, session)
        # So many that the cancel is on another page of history than the start.
        for _ in range(150):
            await world.cancel(run_id="another")
        await world.cancel(**{named: "r" if named == "run_id" else "u1"})
        async with world.agent() as session:
            run = adopt(session)
            await run.load()
            assert run.cancelled.is_set()
            assert (await run.pipe(source(text("never")))).reason == "cancelled"
            await run.end("cancelled")

    world = play(scene)
    assert world.names()[-1] == "ai-run-end"
    assert "ai-step-start" not in world.names()


def test_a_cancel_before_the_start_is_found_and_one_of_another_run_is_not() -> None:
    async def scene(world: World) -> None:
        await world.say("hi")
        await world.cancel(input_codec_message_id="u1")
        async with world.agent() as session:
            run = session.create_run(ASKED, run_id="r")
            await run.start()
            assert run.cancelled.is_set()
            await run.end("cancelled")
            other = session.create_run(SessionInvocation(), run_id="r2")
            await other.start()
            await world.cancel(run_id="r")
            await world.cancel(run_id="r2")
            await asyncio.wait_for(other.cancelled.wait(), 60)
            gone = session.create_run(SessionInvocation("never"), run_id="r3")
            await world.cancel(run_id="r3")
            await asyncio.wait_for(gone.cancelled.wait(), 60)
            await refused(gone.start(), SessionCancelled)

    world = play(scene)
    assert "r3" not in {h["run-id"] for h in world.headers("ai-run-start")}


def test_connecting_may_be_tried_again() -> None:
    async def scene(world: World) -> None:
        channel = world.log.channel("agent")
        working = channel.subscribe

        def broken(after: str | None = None) -> Any:
            raise OSError("no route")

        channel.subscribe = broken  # type: ignore[method-assign]
        session = world.agent(channel=channel)
        await refused(session.connect(), SubscriptionFailed, "no route")
        channel.subscribe = working  # type: ignore[method-assign]
        await session.connect()
        await session.connect()
        await session.detach()

    play(scene)


def test_a_step_ends_as_it_is_said_or_as_it_went() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            async with run.create_step() as step:
                with pytest.raises(InvalidSessionArgument):
                    await step.send({"type": "unheard-of"})
            async with run.create_step() as step:
                await step.end(StepStatus.CANCELLED)
                await refused(step.start(), InvalidSessionArgument, "has ended")
            async with run.create_step():
                run.cancelled.set()

    ends = play(scene).headers("ai-step-end")
    assert [end["step-reason"] for end in ends] == ["failed", "cancelled", "cancelled"]


def test_what_goes_on_after_a_detach_publishes_nothing() -> None:
    async def scene(world: World) -> None:
        async with world.agent() as session:
            run = await opened(world, session)
            waiting, detached = asyncio.Event(), asyncio.Event()

            async def slow() -> AsyncIterator[Any]:
                *begun, last = text("a")[:4]
                for chunk in begun:
                    yield chunk
                waiting.set()
                await detached.wait()
                yield last

            piping = asyncio.create_task(run.pipe(slow()))
            await waiting.wait()
            before = len(world.log.deliveries)
        detached.set()
        assert isinstance((await piping).error, SessionClosed)
        assert len(world.log.deliveries) == before

    play(scene)
