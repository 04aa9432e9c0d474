"""The channel over Ably's own client: what it sends, what fails, and how it comes back."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
from ably import AblyRealtime

from perdure.channels.ably import AblyChannels, attachments
from perdure.errors import (
    ContinuityLost,
    HistoryFailed,
    InvalidSessionArgument,
    MissingExtra,
    SendFailed,
    SessionError,
    SessionForbidden,
    SubscriptionFailed,
)
from perdure.session.channel import Draft, Revision
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog
from tests.harness import run, until
from tests.realtime_server import DETACHED, ERROR, MESSAGE, Log, RealtimeServer, Refusal

NAME = "chat:1"


def draft(message_id: str, data: Any = "text", **options: Any) -> Draft:
    headers = {"stream": "true"}
    return Draft(message_id=message_id, name="ai-output", transport=headers, data=data, **options)


def revision(data: str) -> Revision:
    return Revision(data=data, transport={"stream": "true"}, codec={"kind": "text"})


class Place:
    """A server with one client, and a channel of it."""

    def __init__(self, server: RealtimeServer, client: AblyRealtime) -> None:
        self.server = server
        self.client = client
        self.channels = AblyChannels(client)
        self.channel = self.channels.channel(NAME, "ada")

    @property
    def log(self) -> Log:
        return self.server.log(NAME)

    def writes(self) -> list[dict[str, Any]]:
        return [m for f in self.server.frames if f["action"] == MESSAGE for m in f["messages"]]

    def sent(self, action: int) -> list[dict[str, Any]]:
        return [frame for frame in self.server.frames if frame["action"] == action]

    async def breaks(self, how: str) -> None:
        """Let deliveries be missed; the server has to be one that does not go on where it was."""
        if how == "connection":
            await self.server.drop()
        elif how == "detached":
            await self.server.tell({"action": DETACHED, "channel": NAME})
        elif how == "reattached":
            await self.server.peers[0].attached(NAME, resumed=False)
        else:
            error = Refusal(90000, 500).error
            await self.server.tell({"action": ERROR, "channel": NAME, "error": error})

    async def texts(self) -> list[Any]:
        return [message.data for message in (await self.channel.history()).messages][::-1]


@asynccontextmanager
async def place(**options: Any) -> AsyncGenerator[Place]:
    server = RealtimeServer()
    async with server.running(), server.client(**options) as client:
        yield Place(server, client)


async def following(deliveries: AsyncIterator[WireMessage]) -> WireMessage:
    async with asyncio.timeout(60):
        return await anext(deliveries)


def test_a_message_goes_out_as_sessions_write_it() -> None:
    async def main() -> None:
        async with place() as at, at.channel.subscribe():
            named = draft("m", {"a": 1}, codec={"kind": "data"}, ephemeral=True)
            (serial,) = await at.channel.publish([named])
            await at.channel.publish([draft("n", 7)])
            await at.channel.append((await at.channel.publish([draft("o", "")]))[0], revision("x"))
            assert serial
            tiers = {"transport": {"stream": "true"}, "codec": {"kind": "data"}}
            first, number, _, append = at.writes()
            assert first == {
                "id": f"{sha256(b'm').hexdigest()}:0",
                "name": "ai-output",
                "data": '{"a":1}',
                "encoding": "json",
                "clientId": "ada",
                "extras": {"ai": tiers, "ephemeral": True},
            }
            assert number["extras"] == {"ai": {"transport": {"stream": "true"}}}
            assert (number["data"], number["encoding"]) == ("7", "json")
            assert append["version"] == {"clientId": "ada"}
            assert await at.texts() == [7, "x"]
            assert at.sent(10)[0]["params"]["agent"].startswith("perdure/")

    run(main())


@pytest.mark.parametrize("planned", ["lost", "cut", "forgotten"])
def test_a_publish_on_a_connection_that_breaks_is_there_once(planned: str) -> None:
    async def main() -> None:
        async with place() as at:
            at.server.planned = [planned]
            (serial,) = await at.channel.publish([draft("m")])
            assert await at.channel.publish([draft("m")]) == [serial]
            assert await at.texts() == ["text"]
            assert len(at.writes()) == 3

    run(main())


def test_an_append_that_another_connection_may_have_repeated_has_failed() -> None:
    async def main() -> None:
        async with place() as at:
            (serial,) = await at.channel.publish([draft("m", "")])
            at.server.planned = ["cut"]
            await at.channel.append(serial, revision("a"))
            assert await at.texts() == ["a"]
            at.server.planned = ["forgotten"]
            with pytest.raises(SendFailed, match="twice"):
                await at.channel.append(serial, revision("b"))
            assert await at.texts() == ["abb"]
            await at.channel.update(serial, revision("ab"))
            assert await at.texts() == ["ab"]

    run(main())


@pytest.mark.parametrize(
    ("code", "status", "kind", "told"),
    [
        (40160, 401, SessionForbidden, "key or token"),
        (40300, 403, SessionForbidden, "key or token"),
        (93002, 400, SessionForbidden, "allow message updates and appends in the rules of its"),
        (40009, 400, InvalidSessionArgument, "refused"),
        (42911, 429, SendFailed, "refused"),
        (40142, 401, SendFailed, "refused"),
        (50003, 504, SendFailed, "refused"),
    ],
)
def test_a_refusal_says_whether_it_may_be_tried_again(
    code: int, status: int, kind: type[SessionError], told: str
) -> None:
    async def main() -> None:
        async with place() as at:
            (serial,) = await at.channel.publish([draft("m", "")])
            at.server.planned = [Refusal(code, status)] * 3
            for write in (
                at.channel.publish([draft("n")]),
                at.channel.append(serial, revision("x")),
                at.channel.update(serial, revision("x")),
            ):
                with pytest.raises(kind, match=told):
                    await write
            assert await at.texts() == [""]

    run(main())


def test_what_the_client_refuses_is_final_or_not_like_what_the_server_does() -> None:
    async def main() -> None:
        async with place(client_id="bob") as at:
            with pytest.raises(InvalidSessionArgument, match="incompatible"):
                await at.channel.publish([draft("m")])
            bob = at.channels.channel(NAME, "bob")
            with pytest.raises(InvalidSessionArgument, match="Maximum size"):
                await bob.publish([draft("m", "x" * 70_000)])
            slow = AblyChannels(at.client, answer_seconds=0.02).channel(NAME, "bob")
            at.server.planned = ["mute"]
            with pytest.raises(SendFailed, match="no answer in time"):
                await slow.publish([draft("m")])
            assert await bob.publish([]) == []
            await at.client.close()
            with pytest.raises(SendFailed):
                await bob.publish([draft("m")])
            with pytest.raises(SubscriptionFailed):
                async with bob.subscribe():
                    pass

    run(main())


@pytest.mark.parametrize(
    ("code", "status", "attaching", "reading"),
    [
        (40160, 401, SessionForbidden, SessionForbidden),
        (50000, 500, SubscriptionFailed, HistoryFailed),
    ],
)
def test_what_may_not_be_read_is_told_from_what_cannot_be_read_now(
    code: int, status: int, attaching: type[SessionError], reading: type[SessionError]
) -> None:
    async def main() -> None:
        async with place() as at:
            at.server.refused[NAME] = Refusal(code, status)
            with pytest.raises(attaching):
                async with at.channel.subscribe():
                    pass
            with pytest.raises(reading):
                await at.channel.history()
            at.server.refused.clear()
            async with at.channel.subscribe() as deliveries:
                await at.channel.publish([draft("m")])
                assert (await following(deliveries)).data == "text"

    run(main())


def test_a_reader_goes_on_where_a_connection_that_is_resumed_was() -> None:
    async def main() -> None:
        async with place() as at, at.server.client() as other, at.channel.subscribe() as deliveries:
            writer = AblyChannels(other).channel(NAME, "bob")
            await at.server.drop()
            for name in ("m", "n"):
                await writer.publish([draft(name, name)])
            assert [(await following(deliveries)).data for _ in range(2)] == ["m", "n"]

    run(main())


@pytest.mark.parametrize("how", ["connection", "detached", "reattached", "failed"])
def test_a_reader_is_told_where_deliveries_may_be_missing(how: str) -> None:
    async def main() -> None:
        async with place() as at:
            at.server.continuous = False
            async with at.channel.subscribe() as deliveries:
                await at.channel.publish([draft("m")])
                assert (await following(deliveries)).data == "text"
                await at.breaks(how)
                with pytest.raises(ContinuityLost, match="may have been missed"):
                    await following(deliveries)
            async with at.channel.subscribe() as deliveries:
                await at.channel.publish([draft("n", "again")])
                assert (await following(deliveries)).data == "again"

    run(main())


def test_messages_of_others_do_not_take_those_of_the_session_with_them() -> None:
    async def main() -> None:
        async with place() as at, at.channel.subscribe() as deliveries:
            foreign = {"name": "error", "serial": "1", "action": 0, "data": "?"}
            summary = {"name": "x", "serial": "2", "action": 4}
            unnamed = {"name": "x", "data": "no serial"}
            forged = {"name": "x", "serial": "3", "extras": {"ai": {"transport": 1}}}
            own = {"name": "y", "serial": "4", "extras": {"ai": {"transport": {"a": "b"}}}}
            messages = [foreign, summary, unnamed, forged, own]
            await at.server.tell(
                {"action": MESSAGE, "channel": NAME, "channelSerial": "0", "messages": messages}
            )
            first, second = [await following(deliveries) for _ in range(2)]
            assert (first.name, first.transport) == ("error", None)
            assert (second.name, second.transport) == ("y", {"a": "b"})

    run(main())


def test_an_append_that_comes_whole_is_the_message_as_it_stands() -> None:
    async def main() -> None:
        async with place() as at:
            (serial,) = await at.channel.publish([draft("m", "a")])
            log = MessageLog()
            async with at.channel.subscribe() as deliveries:
                for text in ("b", "c"):
                    await at.channel.append(serial, revision(text))
                first, second = [await following(deliveries) for _ in range(2)]
            assert (first.action, first.data) == (Action.UPDATE, "ab")
            assert (second.action, second.data) == (Action.APPEND, "c")
            for delivery in (first, second):
                log.receive(delivery)
            stored = (await at.channel.history()).messages[0]
            held = log.get(serial)
            assert held is not None
            assert (
                (held.data, held.version)
                == (stored.data, stored.version)
                == (
                    "abc",
                    second.version,
                )
            )

    run(main())


def test_a_channel_is_attached_for_as_long_as_anybody_reads_it() -> None:
    async def main() -> None:
        async with place() as at:
            other = at.channels.channel(NAME, "bob")
            async with at.channel.subscribe() as deliveries:
                async with other.subscribe():
                    pass
                assert at.sent(12) == []
                await other.publish([draft("m")])
                assert (await following(deliveries)).client_id == "bob"
            assert len(at.sent(12)) == 1
            assert NAME not in at.client.channels
            async with AsyncExitStack() as reading:
                await reading.enter_async_context(at.channel.subscribe())
                leaving = asyncio.create_task(reading.pop_all().aclose())
                await until(lambda: at.client.channels.get(NAME).state == "detaching")
                async with other.subscribe() as deliveries:
                    await leaving
                    await other.publish([draft("n")])
                    assert (await following(deliveries)).data == "text"

    run(main())


def test_without_a_connection_nobody_waits_for_one_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attachments, "_LEAVING_SECONDS", 3600.0)

    async def main() -> None:
        async with place() as at:
            async with at.channel.subscribe():
                await at.server.stop()
                await until(lambda: at.client.connection.state != "connected")
            slow = AblyChannels(at.client, answer_seconds=0.02).channel(NAME, "ada")
            with pytest.raises(SendFailed, match="in time"):
                await slow.publish([draft("m")])
            with pytest.raises(HistoryFailed):
                await slow.history()
            with pytest.raises(SubscriptionFailed, match="in time"):
                async with slow.subscribe():
                    pass

    run(main())


def test_history_goes_on_behind_its_last_page_and_finds_any_other() -> None:
    async def main() -> None:
        async with place() as at:
            serials = [(await at.channel.publish([draft(f"{n}", f"{n}")]))[0] for n in range(7)]
            found: list[str] = []
            before, more = None, True
            while more:
                page = await at.channel.history(before, 2)
                found += [message.serial for message in page.messages]
                before, more = found[-1], page.more
            assert found == serials[::-1]
            assert at.server.reads == 4
            page = await at.channels.channel(NAME, "bob").history(serials[4], 2)
            assert [message.serial for message in page.messages] == [serials[3]]
            assert page.more
            at.server.refused[NAME] = Refusal(50000, 500)
            with pytest.raises(HistoryFailed):
                await at.channel.history(serials[5], 2)
            at.server.refused.clear()
            assert (await at.channel.history(serials[5], 2)).messages[0].serial == serials[4]

    run(main())


def test_a_cursor_is_refused_where_history_does_not_go_back_to_it() -> None:
    async def main() -> None:
        async with place() as at:
            first, *_ = [await at.channel.publish([draft(f"{n}")]) for n in range(3)]
            del at.log.stored[first[0]]
            with pytest.raises(ContinuityLost, match="read it from its end"):
                async with at.channel.subscribe(first[0]) as deliveries:
                    await following(deliveries)

    run(main())


def test_what_arrives_while_history_is_read_is_given_once() -> None:
    async def main() -> None:
        async with place() as at:
            (first,) = await at.channel.publish([draft("m")])
            async with at.channel.subscribe(first) as deliveries:
                (second,) = await at.channel.publish([draft("n", "a")])
                version = await at.channel.append(second, revision("b"))
                found = [await following(deliveries)]
                (third,) = await at.channel.publish([draft("o")])
                found.append(await following(deliveries))
            assert [each.version for each in found] == [version, third]
            assert [each.data for each in found] == ["ab", "text"]

    run(main())


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.channels.ably")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[ably\]'"):
        importlib.import_module("perdure.channels.ably")
