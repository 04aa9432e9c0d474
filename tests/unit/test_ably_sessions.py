"""An agent and people on Ably's own client: a crash, and the attempt that replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from perdure.channels.ably import AblyChannel, AblyChannels
from perdure.session.client import ClientSession
from perdure.session.codec import UiMessageCodec
from perdure.session.run import SessionInvocation
from perdure.session.session import AgentSession
from tests.harness import run
from tests.realtime_server import RealtimeServer
from tests.session_agents import source, text

NAME = "chat:1"
DEAD = text("late", " and", " lost", message_id="dead")
GOOD = text("of", " the", " living", message_id="good")
SAID = [{"type": "text", "text": "who is"}, {"type": "text", "text": "there?"}]
SEEN = ["who is", "there?", "of the living"]


class Person(ClientSession):
    """A client, and every text that it was ever shown."""

    def __init__(self, channel: AblyChannel) -> None:
        super().__init__(channel, UiMessageCodec(), client_id="alice", session_name=NAME)
        self.shown: list[list[str]] = []

    async def watch(self) -> None:
        """Return once a run is complete."""
        async for _ in self.changes():
            self.shown.append(self.texts())
            if self.is_over():
                return

    def texts(self) -> list[str]:
        parts = [part for message in self.view.messages for part in message.message["parts"]]
        return [part["text"] for part in parts if "text" in part]

    def is_over(self) -> bool:
        return [run.lifecycle.status for run in self.view.runs] == ["complete"]


async def dies(channel: AblyChannel, asked: SessionInvocation, reached: asyncio.Event) -> None:
    async with AgentSession(channel, UiMessageCodec()) as session:
        run = session.create_run(asked, run_id="r", invocation_id="i")
        await run.start()
        async with run.create_step(step_id="s") as step:
            await step.pipe(source(DEAD[:4], then=reached))


async def answers(
    channel: AblyChannel, asked: SessionInvocation, chunks: AsyncIterator[Any]
) -> None:
    async with AgentSession(channel, UiMessageCodec()) as session:
        run = session.adopt_run(run_id="r", invocation_id="i", trigger=asked)
        await run.load()
        async with run.create_step(step_id="s") as step:
            await step.pipe(chunks)
        await run.end()


def test_a_crashed_attempt_is_replaced_for_readers_on_other_connections() -> None:
    async def breaking(server: RealtimeServer) -> AsyncIterator[Any]:
        for chunk in GOOD[:4]:
            yield chunk
        # The next append arrives, and the client repeats it on a connection that knows nothing.
        server.planned = ["forgotten"]
        for chunk in GOOD[4:]:
            yield chunk

    async def main() -> None:
        server = RealtimeServer()
        async with server.running(), server.client() as agents, server.client() as people:
            agent = AblyChannels(agents).channel(NAME, "agent")
            alice = AblyChannels(people).channel(NAME, "alice")
            async with Person(alice) as live:
                watching = asyncio.create_task(live.watch())
                asked = (await live.send(SAID)).invocation
                reached = asyncio.Event()
                dying = asyncio.create_task(dies(agent, asked, reached))
                await reached.wait()
                dying.cancel()
                await asyncio.gather(dying, return_exceptions=True)
                await answers(agent, asked, breaking(server))
                await watching
                assert live.texts() == SEEN
            async with Person(alice) as late:
                await late.load_history()
                assert late.is_over()
                assert late.texts() == SEEN
        assert any(delivery["action"] == 1 for delivery in server.log(NAME).deliveries)
        shown = ["".join(texts[2:]) for texts in live.shown]
        assert any(text and "late and lost".startswith(text) for text in shown)
        assert all(len(texts) <= 3 for texts in live.shown)

    run(main())
