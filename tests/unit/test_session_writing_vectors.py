"""What an agent writes is seen as the recorded turns of the wire are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.session.piping import PipeReason, Write
from perdure.session.run import SessionInvocation
from tests.session_agents import VECTORS, World, source, text


def event(number: int) -> SessionInvocation:
    return SessionInvocation(f"00000000-0000-4000-8000-{number:012}")


def ids(*numbers: int) -> list[str]:
    return [event(number).input_event_id for number in numbers]


async def simple_turn(world: World) -> None:
    await world.replay("simple-turn", "ai-input")
    async with world.agent(ids=ids(2)) as session:
        run = session.create_run(event(1), run_id="run-1", invocation_id="inv-1")
        await run.start()
        chunks = text("Hi", " there", "!", message_id="asst-1")
        assert (await run.pipe(source(chunks))).reason is PipeReason.COMPLETE
        await run.end()


async def retry_supersede(world: World) -> None:
    await world.replay("retry-supersede", "ai-input")

    async def dies() -> None:
        async with world.agent(ids=ids(2)) as session:
            run = session.create_run(event(1), run_id="run-1", invocation_id="inv-1")
            await run.start()
            async with run.create_step(step_id="step-1") as step:
                chunks = text("Once upon", " a dea", message_id="asst-dead")[:-3]
                await step.pipe(source(chunks, then=asyncio.Event()))

    dead = asyncio.create_task(dies())
    await world.until(lambda: world.log.deliveries[-1].data == "Once upon a dea")
    dead.cancel()
    await asyncio.gather(dead, return_exceptions=True)
    async with world.agent(ids=ids(3)) as session:
        run = session.adopt_run(run_id="run-1", invocation_id="inv-1", trigger=event(1))
        await run.load()
        async with run.create_step(step_id="step-1") as step:
            await step.pipe(source(text("Once upon", " a time.", message_id="asst-good")))
        await run.end()


async def tool_approval(world: World) -> None:
    await world.replay("tool-approval", "ai-input")
    asked = [
        *text(message_id="asst-1")[:2],
        {"type": "tool-input-start", "toolCallId": "call-1", "toolName": "deleteDb"},
        {"type": "tool-input-delta", "toolCallId": "call-1", "inputTextDelta": '{"db":'},
        {"type": "tool-input-delta", "toolCallId": "call-1", "inputTextDelta": '"prod"}'},
        {
            "type": "tool-input-available",
            "toolCallId": "call-1",
            "toolName": "deleteDb",
            "input": {"db": "prod"},
        },
        {"type": "tool-approval-request", "toolCallId": "call-1", "approvalId": "appr-1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "tool-calls"},
    ]
    async with world.agent(ids=ids(2)) as session:
        run = session.create_run(event(1), run_id="run-1", invocation_id="inv-1")
        await run.start()
        await run.pipe(source(asked))
        await run.suspend()
    await world.replay("tool-approval", "ai-input", 1)
    async with world.agent(ids=["unused", *ids(4, 5)]) as session:
        run = session.create_run(event(3), invocation_id="inv-2")
        await run.start()
        assert run.view[-1].message["parts"][-1]["state"] == "approval-responded"
        async with run.create_step() as step:
            output = {"deleted": True}
            await step.send(
                {"type": "tool-output-available", "toolCallId": "call-1", "output": output}
            )
        await run.pipe(source(text("Deleted.", stream="t2", message_id="asst-2")))
        await run.end()


async def cancel_mid_stream(world: World) -> None:
    async def last(write: Write) -> None:
        await write({"type": "abort", "reason": "user"})

    await world.replay("cancel-mid-stream", "ai-input")
    async with world.agent(ids=ids(2)) as session:
        run = session.create_run(event(1), run_id="run-1", invocation_id="inv-1")
        await run.start()
        waiting = asyncio.Event()
        chunks = text("word", " word", message_id="asst-1")[:-3]
        piping = asyncio.create_task(run.pipe(source(chunks, then=waiting), on_cancelled=last))
        await waiting.wait()
        await world.replay("cancel-mid-stream", "ai-cancel")
        assert (await piping).reason is PipeReason.CANCELLED
        await run.end("cancelled")


async def stream_error(world: World) -> None:
    await world.replay("stream-error", "ai-input")
    async with world.agent(ids=ids(2)) as session:
        run = session.create_run(event(1), run_id="run-1", invocation_id="inv-1")
        await run.start()
        chunks = text("half", message_id="asst-1")[:-3]
        failed = await run.pipe(source(chunks, then=RuntimeError("rate limited")))
        assert failed.reason is PipeReason.ERROR
        await run.end("error", error=failed.error)


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    "simple-turn": simple_turn,
    "retry-supersede": retry_supersede,
    "tool-approval": tool_approval,
    "cancel-mid-stream": cancel_mid_stream,
    "stream-error": stream_error,
}


def written(name: str) -> World:
    async def main() -> World:
        world = World()
        async with asyncio.timeout(60):
            await SCENARIOS[name](world)
        return world

    return asyncio.run(main())


def attributed(world: World, vector: str) -> tuple[list[Any], list[Any]]:
    """Return the creates of what was written and of the recording, without what is not compared."""

    def told(name: object, transport: dict[str, str], codec: dict[str, str], data: object) -> Any:
        left = {"step-start-serial", "parent", "discrete"}
        kept = {key: value for key, value in transport.items() if key not in left}
        return name, kept, codec, data

    ours = [
        told(d.name, d.transport or {}, d.codec, d.data)
        for d in world.log.deliveries
        if d.action == "message.create"
    ]
    lines = map(json.loads, (VECTORS / f"{vector}.wire.jsonl").read_text("utf-8").splitlines())
    theirs = [
        told(m["name"], ai["transport"], ai.get("codec", {}), m.get("data"))
        for m in lines
        if m["action"] == "message.create" and (ai := m["extras"]["ai"])
    ]
    return ours, theirs


@pytest.mark.parametrize("name", SCENARIOS)
def test_readers_see_what_the_recording_shows(name: str) -> None:
    world = written(name)
    expected = json.loads((VECTORS / f"{name}.expected.json").read_text("utf-8"))["cold"]["view"]
    for joined in range(len(world.log.deliveries) + 1):
        assert world.seen(joined=joined) == expected, joined
    assert world.errors == []


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("simple-turn", "complete"),
        ("cancel-mid-stream", "cancelled"),
        ("stream-error", "streaming"),
    ],
)
def test_streams_end_as_those_of_the_recording(name: str, status: str) -> None:
    appends = [d for d in written(name).log.deliveries if d.action == "message.append"]
    assert appends[-1].header("status") == status


@pytest.mark.parametrize("name", SCENARIOS)
def test_messages_are_those_of_the_recording(name: str) -> None:
    ours, theirs = attributed(written(name), name)
    for mine, recorded in zip(ours, theirs, strict=True):
        assert mine == recorded
