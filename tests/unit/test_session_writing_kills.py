"""An agent that dies at any chunk is replaced on everybody's screen by the next attempt."""

from __future__ import annotations

import asyncio

import pytest

from perdure.session.codec import UiMessageCodec
from perdure.session.reader import SessionReader
from tests.session_agents import ASKED, World, source, text

DEAD = text("of", " the", " dead", message_id="dead")
GOOD = text("of", " the", " living", message_id="good")


def killed_after(chunks: int) -> World:
    async def dies(world: World, reached: asyncio.Event) -> None:
        async with world.agent() as session:
            run = session.create_run(ASKED, run_id="r", invocation_id="i")
            await run.start()
            async with run.create_step(step_id="s") as step:
                await step.pipe(source(DEAD[:chunks], then=reached))

    async def main() -> World:
        world, reached = World(), asyncio.Event()
        await world.say("hi")
        async with asyncio.timeout(60):
            dying = asyncio.create_task(dies(world, reached))
            await reached.wait()
            for _ in range(chunks % 3):
                await asyncio.sleep(0)
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
            async with world.agent() as session:
                run = session.adopt_run(run_id="r", invocation_id="i", trigger=ASKED)
                await run.load()
                async with run.create_step(step_id="s") as step:
                    await step.pipe(source(GOOD))
                await run.end()
        return world

    return asyncio.run(main())


@pytest.mark.parametrize("chunks", range(len(DEAD) + 1))
def test_nobody_sees_both_attempts(chunks: int) -> None:
    world = killed_after(chunks)
    reader = SessionReader(UiMessageCodec())
    starts = 0
    for delivery in world.log.deliveries:
        reader.receive(delivery)
        starts += delivery.name == "ai-step-start"
        shown = [m.message for m in reader.view.messages if m.message["role"] == "assistant"]
        assert len(shown) <= 1
        assert starts < 2 or all(message["id"] == "good" for message in shown if message["parts"])
    assert starts == 2
    final = world.seen()
    assert world.texts() == ["hi", "of the living"]
    assert final["runs"][0]["status"] == "complete"
    for joined in range(len(world.log.deliveries)):
        assert world.seen(joined=joined) == final
