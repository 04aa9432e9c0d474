"""What readers of a stored channel are given, whatever happens beside them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from perdure.channels.stored import StoredChannel
from perdure.errors import (
    ContinuityLost,
    SessionClosed,
    StorageBusy,
    StorageCorrupt,
    SubscriptionFailed,
)
from perdure.session.channel import Draft, Revision
from perdure.session.message import WireMessage
from perdure.session.message_log import MessageLog
from perdure.testing.manual_clock import ManualClock
from tests.channels import Failing, TurnClock, opened
from tests.harness import run

GROWS = {"stream": "true", "status": "streaming"}


class Interrupted:
    """A store with something else happening before and behind each of its reads."""

    def __init__(self, store: Any) -> None:
        self.happen: Callable[[], Awaitable[None]] | None = None
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in {"session_snapshot", "session_heads", "session_deliveries"}:
            return method

        async def read(*arguments: Any) -> Any:
            if self.happen is not None:
                await self.happen()
            found = await method(*arguments)
            if self.happen is not None:
                await self.happen()
            return found

        return read


class Writes:
    """A message, more of it, and another message, each written at a point of what a reader does."""

    def __init__(self, channel: StoredChannel, points: tuple[int, ...]) -> None:
        self.versions: list[str] = []
        self._channel = channel
        self._left = [*points]
        self._passed = itertools.count()
        self._turn = asyncio.Lock()

    async def happen(self) -> None:
        """Write what is due at the next point."""
        point = next(self._passed)
        while self._left and self._left[0] <= point:
            await self._write()

    async def end(self) -> None:
        """Write what is left."""
        while self._left:
            await self._write()

    async def _write(self) -> None:
        async with self._turn:
            self._left.pop(0)
            match self.versions:
                case []:
                    self.versions += await self._channel.publish([draft("a", "a")])
                case [serial]:
                    self.versions.append(await self._channel.append(serial, more("+")))
                case _:
                    self.versions += await self._channel.publish([draft("b", "b")])


def draft(name: str, data: str = "") -> Draft:
    return Draft(message_id=name, name="ai-output", transport=GROWS, data=data)


def more(data: str) -> Revision:
    return Revision(data=data, transport=GROWS, codec={})


def folded(deliveries: list[WireMessage]) -> list[Any]:
    log = MessageLog()
    for delivery in deliveries:
        log.receive(delivery)
    found = [log.get(serial) for serial in sorted({each.serial for each in deliveries})]
    return [message.data for message in found if message is not None]


async def take(deliveries: AsyncIterator[WireMessage], count: int) -> list[WireMessage]:
    return [await anext(deliveries) for _ in range(count)]


@pytest.mark.parametrize("writer", [0, 1], ids=["same process", "another process"])
def test_whatever_is_written_while_a_snapshot_is_continued_comes_once(writer: int) -> None:
    """All are tried: three writes at any of the points before, between and behind the reads."""

    async def main() -> None:
        clock = TurnClock()
        async with opened(f"memory:{secrets.token_hex(8)}", 2, clock, Interrupted) as processes:
            reader = processes[0]
            for points in itertools.combinations_with_replacement(range(6), 3):
                session = f"session {points}"
                writes = Writes(processes[writer].channel(session, "agent"), points)
                channel = reader.channel(session, "reader")
                reader.around.happen = writes.happen
                snapshot = await channel.snapshot()
                async with channel.subscribe(snapshot.cursor) as deliveries:
                    reader.around.happen = None
                    await writes.end()
                    rest = [version for version in writes.versions if version > snapshot.cursor]
                    found = await take(deliveries, len(rest))
                assert [delivery.version for delivery in found] == rest, points
                assert folded([*snapshot.messages, *found]) == ["a+", "b"]

    run(main())


def test_readers_who_are_attached_at_any_time_are_given_what_comes_from_then_on() -> None:
    async def main() -> None:
        clock = TurnClock()
        async with opened(f"memory:{secrets.token_hex(8)}", 2, clock, Interrupted) as processes:
            reader = processes[0]
            for points in itertools.combinations_with_replacement(range(4), 3):
                session = f"session {points}"
                writes = Writes(processes[1].channel(session, "agent"), points)
                reader.around.happen = writes.happen
                async with reader.channel(session, "reader").subscribe() as deliveries:
                    reader.around.happen = None
                    before = [*writes.versions]
                    await writes.end()
                    (last,) = await reader.channel(session, "reader").publish([draft("c")])
                    found = [(await anext(deliveries)).version]
                    while found[-1] != last:
                        found.append((await anext(deliveries)).version)
                wrote = [*writes.versions, last]
                # What was written while it attached may come, and what came after has to.
                assert found == wrote[-len(found) :]
                assert len(found) >= len(wrote) - len(before)

    run(main())


def test_what_is_passed_on_while_it_is_read_comes_once() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, TurnClock(), Interrupted) as (here,):
            channel = here.channel("s", "agent")
            (serial,) = await channel.publish([draft("a")])
            async with channel.subscribe() as deliveries:
                versions: list[str] = []
                passed = itertools.count()

                async def happen() -> None:
                    # Only before the reads: what is behind one has to be read by the next.
                    if next(passed) % 2 == 0 and len(versions) < 9:
                        versions.append(await channel.append(serial, more("+")))

                here.around.happen = happen
                await channel.publish([draft("b")])
                found = await take(deliveries, 10)
            assert [int(each.version) for each in found] == [*range(2, 12)]

    run(main())


def test_a_reader_who_never_reads_costs_nothing_and_slows_nobody() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, TurnClock()) as (here,):
            channel = here.channel("s", "agent")
            (serial,) = await channel.publish([draft("a")])
            async with channel.subscribe() as fast, channel.subscribe() as slow:
                for number in range(40):
                    texts = [f"{number}.{place} unread " for place in range(100)]
                    versions = await asyncio.gather(
                        *(channel.append(serial, more(text)) for text in texts)
                    )
                    found = await take(fast, len(versions))
                    assert [each.data for each in found] == texts
                gc.collect()
                every = [each for each in gc.get_objects() if type(each) is WireMessage]
                kept = sum(str(each.data).endswith(" unread ") for each in every)
                assert 0 < kept < 1000
                every.clear()
                (whole,) = (await channel.history()).messages
                late = [await anext(slow)]
                while late[-1].version < whole.version:
                    late.append(await anext(slow))
                assert folded(late) == [whole.data]

    run(main())


def test_large_deliveries_are_not_kept_for_a_reader_who_never_reads() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, TurnClock()) as (here,):
            channel = here.channel("s", "agent")
            async with channel.subscribe() as slow:
                texts = [str(number) * 300_000 for number in range(10)]
                for text in texts:
                    await channel.publish([draft(text[0], text)])
                gc.collect()
                every = [each for each in gc.get_objects() if type(each) is WireMessage]
                held = [each.data for each in every if each.data in texts]
                assert len(held) < 7
                held.clear()
                every.clear()
                assert [each.data for each in await take(slow, 10)] == texts

    run(main())


def test_who_attaches_beside_another_reader_is_given_nothing_from_before() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(f"memory:{secrets.token_hex(8)}", 2, clock) as (here, other):
            reader, agent = here.channel("s", "reader"), other.channel("s", "agent")
            async with AsyncExitStack() as attached:
                early = await attached.enter_async_context(reader.subscribe())
                (first,) = await agent.publish([draft("a")])
                late = await attached.enter_async_context(reader.subscribe())
                (last,) = await agent.publish([draft("b")])
                clock.advance(0.05)
                assert [each.serial for each in await take(early, 2)] == [first, last]
                assert [each.serial for each in await take(late, 1)] == [last]

    run(main())


def test_what_this_process_writes_is_delivered_at_once() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, ManualClock()) as (here,):
            channel = here.channel("s", "agent")
            async with channel.subscribe() as deliveries:
                (serial,) = await channel.publish([draft("a")])
                assert (await anext(deliveries)).version == serial
                version = await channel.update(serial, more("new"))
                assert (await anext(deliveries)).version == version

    run(main())


def test_a_cursor_from_before_what_was_ephemeral_is_gone_on_from() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(f"memory:{secrets.token_hex(8)}", 1, clock) as (here,):
            channel = here.channel("s", "agent")
            (first,) = await channel.publish([draft("a")])
            await channel.publish([msgspec.structs.replace(draft("b"), ephemeral=True)])
            clock.advance(3600)
            await here.channel("t", "agent").publish([draft("a")])
            async with channel.subscribe(first) as deliveries:
                waiting = asyncio.ensure_future(anext(deliveries))
                (last,) = await channel.publish([draft("c")])
                assert (await waiting).version == last

    run(main())


def test_a_store_that_is_busy_is_asked_again_and_nothing_is_missed() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 2, TurnClock(), Failing) as processes:
            here, other = processes
            async with here.channel("s", "reader").subscribe() as deliveries:
                busy = here.around.failing
                busy["session_heads"] += [StorageBusy("busy")] * 2
                busy["session_deliveries"] += [StorageBusy("busy")] * 2
                serials = await other.channel("s", "agent").publish([draft("a"), draft("b")])
                assert [each.serial for each in await take(deliveries, 2)] == serials
                assert busy == {"session_heads": [], "session_deliveries": []}

    run(main())


@pytest.mark.parametrize("method", ["session_heads", "session_deliveries"])
def test_readers_are_told_that_a_store_cannot_be_read_and_may_attach_again(method: str) -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, TurnClock(), Failing) as (here,):
            channel = here.channel("s", "reader")
            (first,) = await channel.publish([draft("a")])
            async with channel.subscribe() as one, channel.subscribe() as other:
                here.around.failing[method].append(StorageCorrupt("damaged"))
                await channel.publish([draft("b")])
                for deliveries in (one, other):
                    with pytest.raises(SubscriptionFailed, match="damaged"):
                        await anext(deliveries)
            async with channel.subscribe(first) as deliveries:
                assert (await anext(deliveries)).version > first
            here.around.failing[method].append(StorageCorrupt("damaged"))
            cursor = None if method == "session_heads" else first
            with pytest.raises(SubscriptionFailed, match="damaged"):
                async with channel.subscribe(cursor):
                    pass

    run(main())


def test_who_misses_what_was_erased_is_told_to_begin_anew() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(f"memory:{secrets.token_hex(8)}", 2, clock) as (here, other):
            async with here.channel("s", "reader").subscribe("0" * 16) as deliveries:
                (first,) = await other.channel("s", "agent").publish([draft("a")])
                await other.channel("s", "agent").publish([draft("b")])
                await other.store.erase_session("s")
                (last,) = await other.channel("s", "agent").publish([draft("c")])
                clock.advance(0.05)
                with pytest.raises(ContinuityLost):
                    await anext(deliveries)
            with pytest.raises(ContinuityLost):
                async with here.channel("s", "reader").subscribe(first):
                    pass
            snapshot = await here.channel("s", "reader").snapshot()
            assert ([m.serial for m in snapshot.messages], snapshot.cursor) == ([last], last)

    run(main())


def test_closing_sends_readers_away_who_have_had_what_is_there() -> None:
    async def main() -> None:
        async with opened(f"memory:{secrets.token_hex(8)}", 1, TurnClock()) as (here,):
            channel = here.channel("s", "reader")
            async with channel.subscribe() as one, channel.subscribe() as other:
                (first,) = await channel.publish([draft("a")])
                waiting = [asyncio.create_task(take(one, 2)), asyncio.create_task(take(other, 1))]
                assert [each.serial for each in await waiting[1]] == [first]
                await here.channels.close()
                with pytest.raises(SessionClosed):
                    await waiting[0]
            with pytest.raises(SessionClosed):
                async with channel.subscribe():
                    pass

    run(main())
