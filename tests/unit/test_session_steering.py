"""What is said to a run while it goes on, and what its cancels come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.errors import CancelListenerFailed, InvalidSessionArgument
from perdure.session.attempts import StepStatus
from perdure.session.cancelling import CancelRequest
from perdure.session.client import ClientSession
from perdure.session.codec import TextCodec
from perdure.session.lifecycle import RunStatus
from perdure.session.received import Received
from perdure.session.run import AgentRun
from perdure.session.sent import Sent
from perdure.session.session import AgentSession
from perdure.session.steered import SteerOutcome
from tests.session_agents import World, source, text, tool_call

Scene = Callable[[World, ClientSession, AgentSession, Sent], Coroutine[Any, Any, None]]


def play(scene: Scene) -> World:
    """Play a scene in which alice has said something."""

    async def main() -> World:
        world = World()
        async with asyncio.timeout(60), world.client() as client, world.agent() as agent:
            await scene(world, client, agent, await client.send("Plan a trip"))
        return world

    return asyncio.run(main())


async def suspended(agent: AgentSession, sent: Sent, **more: Any) -> None:
    """Open a run, let it ask whether it may make a call, and suspend it."""
    run = await opened(agent, sent, **more)
    await run.pipe(source(tool_call("c1")))
    await run.suspend()
    assert (await sent.ended()).lifecycle.status is RunStatus.SUSPENDED


async def opened(agent: AgentSession, sent: Sent, **more: Any) -> AgentRun:
    run = agent.create_run(sent.invocation, run_id="r", **more)
    await run.start()
    return run


def stamps(world: World) -> list[str | None]:
    found = [d for d in world.log.deliveries if d.name == "ai-output" and d.codec["kind"] == "text"]
    return [(d.transport or {}).get("steer-codec-message-ids") for d in found]


def roles(run: AgentRun) -> list[str]:
    return [folded.message["role"] for folded in run.view]


def test_steering_is_answered_by_the_next_output_and_its_sender_hears_of_it() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        told: list[Received] = []
        run = await opened(agent, sent, on_steer=told.append)
        assert run.has_input()
        assert run.has_input()
        await run.pipe(source(text("Rome")))
        assert not run.has_input()
        steered = await sent.steer(
            [{"type": "text", "text": "make it"}, {"type": "text", "text": "cheap"}]
        )
        late = asyncio.create_task(steered.outcome())
        await world.until(lambda: bool(told))
        (said,) = run.steers
        await world.cancel(run_id="another")
        requests = agent._connection.reader.tree.requests
        await world.until(lambda: bool(requests.cancels(run_id="another")))
        await asyncio.sleep(0)
        assert told == [said]
        assert (said.event_id, said.client_id) == (steered.event_id, "alice")
        assert [part["text"] for part in said.payload["parts"]] == ["make it", "cheap"]
        assert run.has_input()
        assert roles(run) == ["user", "assistant", "user"]
        await run.pipe(source(text("A cheap trip")))
        assert not run.has_input()
        assert [one.event_id for one in run.steers] == [steered.event_id]
        missed = await client.steer("r", "and warm")
        await world.until(lambda: len(told) == 2)
        await run.end()
        assert await late == SteerOutcome(consumed=True, status=RunStatus.COMPLETE)
        assert await missed.outcome() == SteerOutcome(consumed=False, status=RunStatus.COMPLETE)
        for steering in (client.steer("r", "too late"), sent.steer("too late")):
            with pytest.raises(InvalidSessionArgument, match="has ended"):
                await steering
        assert [said.event_id for said in told] == [steered.event_id, missed.event_id]
        assert stamps(world) == [None, f'["{steered.codec_message_id}"]']

    assert play(scene).errors == []


def test_steering_that_waits_is_found_by_the_process_that_adopts_the_run() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        first = await opened(agent, sent)
        steered = await client.steer("r", "cheap", event_id="s")
        assert (await client.steer("r", "cheap", event_id="s")).published == steered.published
        assert first.has_input()
        async with first.create_step(step_id="answer") as step:
            await step.pipe(source(text("half")[:-3], then=ValueError("gone")))
        told: list[Received] = []
        async with world.agent(codec=TextCodec()) as other:
            run = other.adopt_run(
                run_id="r", invocation_id="i2", trigger=sent.invocation, on_steer=told.append
            )
            await run.load()
            await world.until(lambda: steered.consumed)
            assert not told
            async with run.create_step(step_id="answer") as step:
                await world.until(lambda: not steered.consumed)
                assert run.has_input()
                await step.pipe(source(["whole"]))
            (said,) = run.steers
            assert said.payload["text"] == "cheap"
            await run.suspend()
        assert (await steered.outcome()).consumed

    world = play(scene)
    assert len(set(stamps(world))) == 1


@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
def test_what_an_agent_says_to_take_up_is_said_by_the_attempt_that_counts(dies: bool) -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        run = await opened(agent, sent)
        steered = await client.steer("r", "cheap")
        run.take_up([steered.codec_message_id])
        step = run.create_step(step_id="answer")
        await step.start()
        await step.pipe(source(text("half")[:-3], then=None if dies else ValueError("gone")))
        await world.until(lambda: steered.consumed)
        if dies:
            await agent.detach()
            agent = world.agent()
            await agent.connect()
            run = agent.adopt_run(run_id="r", invocation_id="i2", trigger=sent.invocation)
            await run.load()
            await world.until(lambda: bool(run.steers))
            run.take_up([steered.codec_message_id])
        else:
            await step.end()
        async with run.create_step(step_id="answer") as step:
            await step.pipe(source(text("whole")))
        await run.pipe(source(text("more")))
        await run.end()
        assert (await steered.outcome()).consumed
        await agent.detach()

    world = play(scene)
    first, second, third = stamps(world)
    assert (first == second, third) == (True, None)


def test_a_step_that_fails_gives_back_what_it_took_up() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        run = await opened(agent, sent)
        await run.pipe(source(text("Rome")))
        await client.steer("r", "cheap")
        await world.until(lambda: bool(run.steers))
        assert run.has_input()
        await run.pipe(source([], then=ValueError("no model")))
        assert run.has_input()
        step = run.create_step()
        await step.start()
        await step.pipe(source(text("Cheap")))
        await step.end(StepStatus.COMPLETE)
        assert not run.has_input()
        await client.cancel("r")
        await client.steer("r", "no, dear")
        await run.cancelled.wait()
        assert not run.has_input()

    play(scene)


def test_what_resumes_a_run_and_what_answers_its_calls_is_no_steering() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        first = await opened(agent, sent)
        await first.pipe(source(tool_call("c1")))
        await world.until(lambda: len(client.view.messages) == 2)
        said = await client.approve("c1", True)
        await world.until(lambda: bool(first.answers))
        assert not first.has_input()
        await first.suspend()
        async with world.agent() as other:
            run = other.create_run(said.invocation)
            assert run.trigger is None
            await run.start()
            assert run.trigger == run.answers[0]
            assert run.steers == []
            assert run.view[-1].message["role"] == "assistant"
            await run.pipe(source(text("done")))
            assert not run.has_input()
            await run.suspend()
        asked = {"role": "user", "codec-message-id": "u9", "event-id": "e9", "run-id": "r"}
        await world.write("ai-input", asked, {"kind": "user-message", "partType": "text"}, "go on")
        forged = {"kind": "user-message", "partType": "text"}
        await world.write("ai-input", asked, forged, "or do not", client="mallory")
        async with world.agent() as third:
            run = third.create_run(type(said.invocation)("e9"))
            await run.start()
            assert run.trigger is not None
            assert run.trigger.payload["parts"] == [{"type": "text", "text": "go on"}]
            await run.suspend()
            adopted = third.adopt_run(run_id="r", invocation_id="i4")
            assert adopted.steers == []

    play(scene)


def test_a_cancel_may_be_refused_and_stays_so() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        asked: list[CancelRequest] = []

        async def only_alice(request: CancelRequest) -> bool:
            asked.append(request)
            return request.client_id == "alice"

        async with world.client("mallory") as mallory:
            await mallory.cancel("r", event_id="m")
            run = await opened(agent, sent, on_cancel=only_alice)
            await world.until(lambda: bool(asked))
            await run._incoming.cancelling.decided()
            assert not run.cancelled.is_set()
            for _ in range(2):
                await world.cancel(run_id="r", event_id="replayed")
            await world.until(run.cancelled.is_set)
            replayed = {"run-id": "r", "event-id": "m"}
            await world.write("ai-cancel", replayed, client="mallory")
            await world.until(lambda: run._incoming._looked_at == len(world.log.deliveries))
        assert [(one.client_id, one.event_id, one.run_id) for one in asked] == [
            ("mallory", "m", "r"),
            ("alice", "replayed", "r"),
        ]

    play(scene)


def test_a_cancel_at_whose_hearing_something_breaks_is_reported_and_does_not_count() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        async def breaks(request: CancelRequest) -> bool:
            raise ValueError("no database")

        def breaks_too(said: Received) -> None:
            raise ValueError("no ears")

        await sent.cancel()
        run = await opened(agent, sent, on_cancel=breaks, on_steer=breaks_too)
        assert not run.cancelled.is_set()
        await client.steer("r", "cheap")
        await world.until(lambda: len(world.errors) == 2)
        assert all(type(error) is CancelListenerFailed for error in world.errors)
        assert [str(error.__cause__) for error in world.errors] == ["no database", "no ears"]

    play(scene)


def test_a_hook_that_is_broken_off_is_asked_again() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        answers = [asyncio.Event(), asyncio.Event()]
        asked = iter(answers)

        async def slow(request: CancelRequest) -> bool:
            await next(asked).wait()
            return True

        await sent.cancel()
        run = agent.create_run(sent.invocation, run_id="r", on_cancel=slow)
        starting = asyncio.create_task(run.start())
        await world.until(lambda: bool(run._incoming.cancelling._deciding))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        answers[1].set()
        await run.start()
        assert run.cancelled.is_set()
        assert world.names()[-1] == "ai-run-start"
        await run.end("cancelled")
        assert (await sent.ended()).lifecycle.status is RunStatus.CANCELLED

    play(scene)


@pytest.mark.parametrize("by", ["run", "handle"])
def test_a_cancel_reaches_an_agent_that_comes_later(by: str) -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        first = await opened(agent, sent)
        await sent.started()
        first.detach()
        await client.cancel(sent if by == "handle" else "r")
        async with world.agent() as other:
            run = other.adopt_run(run_id="r", invocation_id="i2", trigger=sent.invocation)
            await run.load()
            assert run.cancelled.is_set()
            await run.end("cancelled")
        with pytest.raises(InvalidSessionArgument, match="empty"):
            await client.cancel("")

    play(scene)


@pytest.mark.parametrize("adopted", ["with its trigger", "without", ""])
def test_a_cancel_from_before_what_resumes_a_run_was_meant_for_what_went_on_then(
    adopted: str,
) -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        async def refuse(request: CancelRequest) -> bool:
            return False

        first = await opened(agent, sent, on_cancel=refuse)
        await client.cancel("r")
        await first.pipe(source(tool_call("c1")))
        await first.suspend()
        await sent.ended()
        await client.cancel("r")
        said = await client.approve("c1", True)
        async with world.agent() as other, world.agent() as third:
            run = other.create_run(said.invocation)
            await run.start()
            if adopted:
                trigger = said.invocation if adopted == "with its trigger" else None
                run = third.adopt_run(run_id="r", invocation_id="i3", trigger=trigger)
                await run.load()
            assert not run.cancelled.is_set()
            await said.cancel()
            await run.cancelled.wait()

    play(scene)


def test_a_cancel_between_an_answer_and_the_resumption_counts() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        await suspended(agent, sent)
        said = await client.approve("c1", True)
        await said.cancel()
        run = agent.create_run(said.invocation)
        await run.start()
        assert run.cancelled.is_set()
        async with world.agent() as other:
            adopted = other.adopt_run(run_id="r", invocation_id="i3")
            await adopted.load()
            assert adopted.cancelled.is_set()

    play(scene)


def test_a_cancel_of_a_run_that_then_goes_on_by_itself_counts() -> None:
    async def scene(world: World, client: ClientSession, agent: AgentSession, sent: Sent) -> None:
        await suspended(agent, sent)
        await client.cancel("r")
        async with world.agent() as other, world.agent() as third:
            run = other.create_run(sent.invocation, run_id="r", invocation_id="i2")
            await run.start()
            assert run.cancelled.is_set()
            adopted = third.adopt_run(run_id="r", invocation_id="i3", trigger=sent.invocation)
            await adopted.load()
            assert adopted.cancelled.is_set()

    assert "ai-run-resume" in play(scene).names()
