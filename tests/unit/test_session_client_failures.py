"""What clients send over a channel that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.errors import (
    ChannelNotReady,
    ContinuityLost,
    InvalidSessionArgument,
    SendFailed,
    SessionForbidden,
)
from perdure.session.channel import Draft
from perdure.session.message import WireMessage
from tests.session_agents import Flaky, World
from tests.unit.test_session_client import inputs, refused, shown
from tests.unit.test_session_writing_failures import Impatient


class Breaking(Flaky):
    """A channel whose deliveries break off when a test says so, and come back."""

    broken: asyncio.Event | None = None

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.subscribe = self._subscribe

    @asynccontextmanager
    async def _subscribe(self, after: str | None = None) -> AsyncIterator[Any]:
        self.broken = asyncio.Event()
        async with self.inner.subscribe(after) as deliveries:
            yield self._until_broken(deliveries, self.broken)

    async def _until_broken(
        self, deliveries: AsyncIterator[WireMessage], broken: asyncio.Event
    ) -> AsyncIterator[WireMessage]:
        while True:
            following = asyncio.ensure_future(anext(deliveries))
            breaking = asyncio.ensure_future(broken.wait())
            try:
                await asyncio.wait({following, breaking}, return_when=asyncio.FIRST_COMPLETED)
                if broken.is_set():
                    raise ContinuityLost("the line is dead")
                yield following.result()
            finally:
                following.cancel()
                breaking.cancel()
                await asyncio.gather(following, breaking, return_exceptions=True)


def test_a_send_is_tried_again_as_the_same_messages() -> None:
    async def main() -> None:
        world = World()
        world.clock = Impatient()
        flaky = Flaky(world.log.channel("alice"))
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        async with asyncio.timeout(60), world.client(channel=flaky) as client:
            flaky.failing["publish"] = ["done", "lost", ""]
            await client.send(parts)
            assert shown(client) == ["one", "two"]
            assert len(inputs(world)) == 2
            ids = [draft.message_id for draft in flaky.drafts]
            assert ids == ids[:2] * 3
            assert len(set(ids)) == 2
            flaky.failing["publish"] = ["lost"] * 4
            await refused(client.send("never", event_id="e"), SendFailed)
            flaky.failing["publish"] = ["done", *["lost"] * 3]
            await refused(client.cancel("r"), SendFailed)
            await client.send("never", event_id="e")
        assert len([name for name in world.names() if name == "ai-cancel"]) == 1
        assert [data for _, _, data in inputs(world)] == ["one", "two", "never"]

    asyncio.run(main())


def test_a_channel_that_refuses_is_not_asked_again_and_nothing_is_shown() -> None:
    class Forbidding(Flaky):
        async def publish(self, drafts: Sequence[Draft]) -> list[str]:
            self.drafts += drafts
            raise SessionForbidden("alice may not publish here")

    async def main() -> None:
        world = World()
        channel = Forbidding(world.log.channel("alice"))
        async with asyncio.timeout(60), world.client(channel=channel) as client:
            await refused(client.send("hi"), SessionForbidden)
            assert len(channel.drafts) == 1
            assert client.view.messages == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "content",
    ["", [], {}, 7, None, b"hi", ["hi"], [{"text": "x"}], [{"type": "text"}], [{"type": "file"}]],
    ids=repr,
)
def test_what_cannot_be_said_is_refused(content: Any) -> None:
    async def main() -> None:
        world = World()
        async with asyncio.timeout(60), world.client() as client:
            if content in ("", {}):
                await client.send(content)
                assert shown(client) == [""]
                return
            await refused(client.send(content), InvalidSessionArgument, "said is|malformed")
            with pytest.raises(InvalidSessionArgument, match="empty"):
                await client.send("hi", event_id="")
            with pytest.raises(InvalidSessionArgument, match="empty"):
                await client.send("hi", message_id="")
        assert world.names() == []

    asyncio.run(main())


def test_nothing_is_sent_before_connect_nor_while_the_channel_is_not_attached() -> None:
    async def main() -> None:
        world = World()
        channel = Breaking(world.log.channel("alice"))
        client = world.client(channel=channel)
        await refused(client.send("hi"), InvalidSessionArgument, "not connected")
        async with asyncio.timeout(60), client, world.client("bob") as bob:
            await client.send("hi")
            await world.until(lambda: client._connection.reader.cursor is not None)
            assert channel.broken is not None
            channel.broken.set()
            await world.until(lambda: bool(world.errors))
            for doing in (client.send("x"), client.cancel("r"), client.steer("r", "x")):
                await refused(doing, ChannelNotReady)
            await bob.send("missed")
            await world.clock.until_sleeping()
            world.clock.advance(1.0)
            await world.until(lambda: shown(client) == ["hi", "missed"])
            await client.send("back")
        assert [type(error) for error in world.errors] == [ContinuityLost]
        assert shown(client) == ["hi", "missed", "back"]

    asyncio.run(main())
