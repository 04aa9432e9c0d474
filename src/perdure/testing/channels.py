"""What every channel of sessions promises, as checks that run on any of them.

A check gets a function that opens the channel of one session as a client of that name has it, and
calls it as often as it wants: each of them may be in a process of its own. The session has to be
empty and the check's own. A check raises `AssertionError` where the channel does something else
than `perdure.session.channel.Channel` says.

    for check in checks():
        session = an_empty_session()
        asyncio.run(check(lambda client_id: my_channel(session, client_id)))

Channels without snapshots leave those out: `checks(snapshots=False)`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.errors import ContinuityLost, InvalidSessionArgument
from perdure.session import headers
from perdure.session.channel import Channel, Draft, Revision, SnapshotChannel
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog
from perdure.testing.storage.expecting import ensure, expect, refusal

OpenChannel: TypeAlias = Callable[[str], Channel]

_STREAMING: Final = {headers.STREAM: headers.TRUE, headers.STATUS: headers.STREAMING}
_COMPLETE: Final = {headers.STREAM: headers.TRUE, headers.STATUS: headers.COMPLETE}


class ChannelCheck(msgspec.Struct, frozen=True):
    """One promise: `name` says what holds."""

    name: str
    holds: Callable[[OpenChannel], Awaitable[None]]

    async def __call__(self, open_channel: OpenChannel) -> None:
        """Check it on an empty session; raises `AssertionError` if the channel does not keep it."""
        await self.holds(open_channel)


def checks(*, snapshots: bool = True) -> list[ChannelCheck]:
    """Return every check, but for those of snapshots where a channel has none."""
    return [
        ChannelCheck(name, holds)
        for name, holds in globals().items()
        if inspect.iscoroutinefunction(holds) and not name.startswith("_")
        if snapshots or not name.startswith("a_snapshot")
    ]


async def history_has_messages_as_they_stand(open_channel: OpenChannel) -> None:
    """The newest first, in pages without gaps."""
    channel = open_channel("ada")
    serials = await channel.publish([_draft(f"m{number}") for number in range(5)])
    expect(serials, sorted({*serials}), "the serials of messages")
    await channel.append(serials[1], _revision("+", _STREAMING))
    await channel.append(serials[1], _revision("!", _COMPLETE))
    await channel.update(serials[2], _revision("new", _COMPLETE))
    found: list[WireMessage] = []
    before, more = None, True
    while more:
        page = await open_channel("bob").history(before, 2)
        ensure(1 <= len(page.messages) <= 2, "a page has as many messages as are asked for")
        found += page.messages
        before, more = page.messages[-1].serial, page.more
    expect([message.serial for message in found], serials[::-1], "the messages of history")
    expect([message.data for message in found], ["m4", "m3", "new", "m1+!", "m0"], "their data")
    told = [(message.name, message.client_id) for message in found]
    expect(told, [(headers.AI_OUTPUT, "ada")] * 5, "names and clients")
    status = [message.header(headers.STATUS) for message in found]
    expect(status, ["streaming", "streaming", "complete", "complete", "streaming"], "states")
    expect(found[0].codec, {"kind": "text"}, "the headers of the codec")


async def a_message_is_there_once_by_its_id(open_channel: OpenChannel) -> None:
    """However often it is published, alone or with others, also at once."""
    one, other = open_channel("ada"), open_channel("ada")
    (first,) = await one.publish([_draft("m0")])
    expect(await other.publish([_draft("m0")]), [first], "the serial of a repetition")
    mixed = await other.publish([_draft("m0"), _draft("m1")])
    ensure(mixed[0] == first < mixed[1], "what is new gets a new serial")
    both = await asyncio.gather(*(by.publish([_draft("m2")]) for by in (one, other, one)))
    expect(both, both[:1] * 3, "a message that is published at once by several")
    expect(await _texts(one), ["m0", "m1", "m2"], "the messages that are there")


async def data_are_any_json(open_channel: OpenChannel) -> None:
    """As a wire carries them; what is no JSON is refused, and what is written beside is not."""
    channel = open_channel("ada")
    data: list[Any] = [{"a": [1, None, "é"]}, "", None, True, "line\n\x00"]
    await channel.publish([_draft(f"m{n}", each) for n, each in enumerate(data)])
    found = [message.data for message in (await channel.history()).messages]
    expect(found[::-1], data, "data of all kinds")
    for odd in (object(), "\ud800"):
        results = await asyncio.gather(
            channel.publish([_draft("odd", odd)]),
            channel.publish([_draft(f"even {type(odd)}", "even")]),
            return_exceptions=True,
        )
        ensure(isinstance(results[0], InvalidSessionArgument), f"no JSON is refused: {results[0]}")
    expect((await _texts(channel))[len(data) :], ["even", "even"], "what was published beside")


async def a_message_that_is_not_there_is_not_changed(open_channel: OpenChannel) -> None:
    """That is refused, and what others write at the same time is not."""
    channel = open_channel("ada")
    (serial,) = await channel.publish([_draft("m0")])
    unknown = serial[:-1] + ("8" if serial[-1] == "9" else "9")
    results = await asyncio.gather(
        channel.append(unknown, _revision("x")),
        channel.append(serial, _revision("+")),
        channel.update(unknown, _revision("x")),
        return_exceptions=True,
    )
    refused = [isinstance(result, InvalidSessionArgument) for result in results]
    expect(refused, [True, False, True], f"who is refused: {results}")
    with refusal(InvalidSessionArgument, "what names no message"):
        await channel.append("nowhere", _revision("x"))
    expect(await _texts(channel), ["m0+"], "what was changed")


async def what_is_ephemeral_is_delivered_and_not_kept(open_channel: OpenChannel) -> None:
    """It has a serial like any other."""
    channel = open_channel("ada")
    async with open_channel("bob").subscribe() as deliveries:
        serials = await channel.publish([_draft("m0"), _draft("m1", ephemeral=True)])
        serials += await channel.publish([_draft("m2")])
        expect([one.serial for one in await _take(deliveries, 3)], serials, "what is delivered")
    expect(serials, sorted({*serials}), "serials")
    expect(await _texts(channel), ["m0", "m2"], "what is kept")


async def a_reader_is_given_what_comes_from_then_on(open_channel: OpenChannel) -> None:
    """In the order of versions, also what it writes itself, and nothing from before."""
    one, other = open_channel("ada"), open_channel("bob")
    (first,) = await one.publish([_draft("m0")])
    async with one.subscribe() as deliveries:
        version = await other.append(first, _revision("+", _STREAMING))
        (grown,) = await _take(deliveries, 1)
        (second,) = await one.publish([_draft("m1")])
        (created,) = await _take(deliveries, 1)
        last = await one.update(first, _revision("new", _COMPLETE))
        (replaced,) = await _take(deliveries, 1)
    found = [grown, created, replaced]
    expect([each.version for each in found], [version, second, last], "versions")
    expect(sorted([version, second, last]), [version, second, last], "the order of versions")
    expect([each.serial for each in found], [first, second, first], "serials")
    expect([each.client_id for each in found], ["bob", "ada", "ada"], "who wrote each")
    expect([each.data for each in found], ["+", "m1", "new"], "data")
    actions = [each.action for each in found]
    expect(actions, [Action.APPEND, Action.CREATE, Action.UPDATE], "what each is delivered as")
    states = [each.header(headers.STATUS) for each in found]
    expect(states, [headers.STREAMING, headers.STREAMING, headers.COMPLETE], "states")


async def a_cursor_is_gone_on_from(open_channel: OpenChannel) -> None:
    """From every delivery on, a reader comes to what history says."""
    channel = open_channel("ada")
    async with open_channel("bob").subscribe() as deliveries:
        serials = await channel.publish([_draft("m0")])
        for number in range(4):
            await channel.append(serials[0], _revision(f"{number}", _STREAMING))
            serials += await channel.publish([_draft(f"n{number}")])
        await channel.append(serials[0], _revision("", _COMPLETE))
        wanted = await _texts(channel)
        live = await _follow(deliveries, [], serials, wanted)
    for count in range(1, len(live)):
        async with open_channel("late").subscribe(live[count - 1].version) as deliveries:
            late = await _follow(deliveries, live[:count], serials, wanted)
        versions = [delivery.version for delivery in late]
        expect(versions, sorted({*versions}), "the versions of a reader who comes back")


async def a_cursor_of_nothing_is_refused(open_channel: OpenChannel) -> None:
    """With `ContinuityLost`, and never by leaving something out."""
    channel = open_channel("ada")
    (first,) = await channel.publish([_draft("m0")])
    async with channel.subscribe() as others:
        await channel.publish([_draft("m1")])
        await _next(others)
        for cursor in ("nowhere", "", "9" * len(first)):
            with refusal(ContinuityLost, f"the cursor {cursor!r}"):
                async with channel.subscribe(cursor) as deliveries:
                    await _next(deliveries)


async def readers_do_not_disturb_each_other(open_channel: OpenChannel) -> None:
    """Attaching twice is harmless, and so is going away."""
    channel = open_channel("ada")
    async with channel.subscribe() as stays, channel.subscribe() as idle:
        async with channel.subscribe():
            leaving = asyncio.ensure_future(_next(idle))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        serials = await channel.publish([_draft("m0"), _draft("m1")])
        expect([one.serial for one in await _take(stays, 2)], serials, "what a reader is given")


async def a_snapshot_is_continued_by_its_cursor(open_channel: OpenChannel) -> None:
    """Whenever it is taken, also of an empty session: nothing is missed, nothing comes twice."""
    channel = cast("SnapshotChannel", open_channel("ada"))
    taken = [await channel.snapshot(2)]
    serials: list[str] = []
    for number in range(4):
        serials += await channel.publish([_draft(f"m{number}")])
        taken.append(await channel.snapshot(2))
    shown = [[message.data for message in each.messages] for each in taken]
    expect(shown, [[], ["m0"], ["m1", "m0"], ["m2", "m1"], ["m3", "m2"]], "the newest messages")
    expect([each.more for each in taken], [False] * 3 + [True] * 2, "whether there are older ones")
    for count, snapshot in enumerate(taken):
        async with open_channel("bob").subscribe(snapshot.cursor) as deliveries:
            serials += await channel.publish([_draft(f"last {count}")])
            behind = serials[count:]
            rest = [each.serial for each in await _take(deliveries, len(behind))]
            expect(rest, behind, "what is behind a snapshot")


def _draft(message_id: str, data: Any = ..., *, ephemeral: bool = False) -> Draft:
    return Draft(
        message_id=message_id,
        name=headers.AI_OUTPUT,
        transport=_STREAMING,
        codec={"kind": "text"},
        data=message_id if data is ... else data,
        ephemeral=ephemeral,
    )


def _revision(data: str, transport: dict[str, str] = _STREAMING) -> Revision:
    return Revision(data=data, transport=transport, codec={"kind": "text"})


async def _texts(channel: Channel) -> list[Any]:
    return [message.data for message in (await channel.history()).messages][::-1]


async def _follow(
    deliveries: AsyncIterator[WireMessage],
    had: Sequence[WireMessage],
    serials: Sequence[str],
    wanted: Sequence[Any],
) -> list[WireMessage]:
    """Read on from what a reader had until it comes to what is wanted; return all of it."""
    log, found = MessageLog(), list(had)
    for delivery in had:
        log.receive(delivery)
    while [message.data for message in map(log.get, serials) if message] != wanted:
        found.append(await _next(deliveries))
        log.receive(found[-1])
    return found


async def _next(deliveries: AsyncIterator[WireMessage]) -> WireMessage:
    async with asyncio.timeout(20):
        return await anext(deliveries)


async def _take(deliveries: AsyncIterator[WireMessage], count: int) -> list[WireMessage]:
    return [await _next(deliveries) for _ in range(count)]
