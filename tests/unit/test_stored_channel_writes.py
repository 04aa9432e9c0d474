"""How what is written to stored channels comes together in transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure.channels.stored import StoredChannels
from perdure.errors import (
    InvalidSessionArgument,
    LeaseLost,
    SendFailed,
    SessionClosed,
    StorageBusy,
    StorageFull,
)
from perdure.fence import Fence
from perdure.session.channel import Draft, Revision
from perdure.testing.manual_clock import ManualClock
from tests.channels import Failing, Process, opened
from tests.harness import run

GROWS = {"stream": "true", "status": "streaming"}
ENDS = {"stream": "true", "status": "complete"}


def draft(name: str) -> Draft:
    return Draft(message_id=name, name="ai-output", transport=GROWS, data="")


def more(data: str, transport: dict[str, str] = GROWS) -> Revision:
    return Revision(data=data, transport=transport, codec={})


@asynccontextmanager
async def still(clock: ManualClock) -> AsyncGenerator[Process]:
    async with opened(f"memory:{secrets.token_hex(8)}", 1, clock, Failing) as (here,):
        yield here


def commits(here: Process) -> list[int]:
    """Return how many writes each transaction had."""
    return [len(given) for name, given in here.around.calls if name == "write_session"]


async def begun(here: Process, *sessions: str) -> list[str]:
    """Publish a message to each session."""
    published = [here.channel(session, "agent").publish([draft("m")]) for session in sessions]
    return [serial for (serial,) in await asyncio.gather(*published)]


def test_what_is_appended_within_a_short_time_shares_a_transaction() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with still(clock) as here:
            names = [f"s{number}" for number in range(50)]
            serials = await begun(here, *names)
            assert commits(here) == [50]
            pairs = zip(names, serials, strict=True)
            appends = [
                asyncio.create_task(here.channel(name, "agent").append(serial, more("+")))
                for name, serial in pairs
            ]
            await clock.until_sleeping()
            assert clock.sleeping == [0.015]
            assert commits(here) == [50]
            clock.advance(0.015)
            assert len(await asyncio.gather(*appends)) == 50
            assert commits(here) == [50, 50]

    run(main())


@pytest.mark.parametrize("urgent", ["publish", "update", "end"])
def test_what_others_wait_for_is_written_at_once_with_all_that_waits(urgent: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with still(clock) as here:
            channel = here.channel("s", "agent")
            one, other = await channel.publish([draft("a"), draft("b")])
            waiting = asyncio.create_task(channel.append(one, more("+")))
            await clock.until_sleeping()
            match urgent:
                case "publish":
                    await channel.publish([draft("c")])
                case "update":
                    await channel.update(other, more("new"))
                case _:
                    await channel.append(other, more("!", ENDS))
            await waiting
            assert commits(here) == [1, 2]

    run(main())


def test_a_transaction_has_so_many_writes_at_most() -> None:
    async def main() -> None:
        async with still(ManualClock()) as here:
            channel = here.channel("s", "agent")
            (serial,) = await channel.publish([draft("a")])
            appends = [channel.append(serial, more(f"{number} ")) for number in range(1100)]
            versions = await asyncio.gather(*appends)
            assert versions == sorted(versions)
            assert commits(here) == [1, 500, 500, 100]
            (message,) = (await channel.history()).messages
            assert message.data == "".join(f"{number} " for number in range(1100))

    run(main())


def test_who_is_refused_does_not_keep_others_from_writing() -> None:
    async def main() -> None:
        async with still(ManualClock()) as here:
            lost = here.channel("s", "agent", Fence("r", "nobody", 1))
            results = await asyncio.gather(
                lost.publish([draft("lost")]),
                here.channel("s", "agent").publish([draft("a")]),
                here.channel("s", "agent").append("0000000000000009", more("+", ENDS)),
                here.channel("t", "agent").publish([draft("b")]),
                return_exceptions=True,
            )
            assert commits(here) == [4]
            kinds = [type(result) for result in results]
            assert kinds == [LeaseLost, list, InvalidSessionArgument, list]
            (message,) = (await here.channel("s", "reader").history()).messages
            assert message.serial == results[1][0]

    run(main())


def test_every_write_carries_the_fence() -> None:
    async def main() -> None:
        async with still(ManualClock()) as here:
            (serial,) = await here.channel("s", "agent").publish([draft("a")])
            lost = here.channel("s", "agent", Fence("r", "nobody", 1))
            writes = (
                lost.publish([draft("b")]),
                lost.append(serial, more("+", ENDS)),
                lost.update(serial, more("new")),
            )
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(result) for result in results] == [LeaseLost] * 3
            (message,) = (await here.channel("s", "reader").history()).messages
            assert message.version == serial

    run(main())


@pytest.mark.parametrize("when", ["failing", "doubted"])
@pytest.mark.parametrize("error", [StorageBusy("busy"), StorageFull("full"), OSError("odd")])
def test_what_a_store_fails_at_may_be_written_again(when: str, error: Exception) -> None:
    async def main() -> None:
        async with still(ManualClock()) as here:
            getattr(here.around, when)["write_session"].append(error)
            names = ["s", "t"]
            failed = await asyncio.gather(
                *(here.channel(name, "agent").publish([draft("m")]) for name in names),
                return_exceptions=True,
            )
            assert [type(each) for each in failed] == [SendFailed] * 2
            assert all(each.__cause__ is error for each in failed)
            serials = await begun(here, *names)
            for name, serial in zip(names, serials, strict=True):
                (message,) = (await here.channel(name, "reader").history()).messages
                assert message.serial == serial

    run(main())


def test_a_caller_who_is_gone_before_a_transaction_begins_has_written_nothing() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with still(clock) as here:
            channel = here.channel("s", "agent")
            (serial,) = await channel.publish([draft("a")])
            texts = ("a", "b", "c")
            appends = [asyncio.create_task(channel.append(serial, more(each))) for each in texts]
            await clock.until_sleeping()
            appends[1].cancel()
            await asyncio.gather(appends[1], return_exceptions=True)
            clock.advance(0.015)
            await asyncio.gather(appends[0], appends[2])
            (message,) = (await channel.history()).messages
            assert message.data == "ac"

    run(main())


def test_closing_writes_what_waits_and_refuses_what_comes_later() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with still(clock) as here:
            channel = here.channel("s", "agent")
            (serial,) = await channel.publish([draft("a")])
            waiting = asyncio.create_task(channel.append(serial, more("+")))
            await clock.until_sleeping()
            await here.channels.close()
            await waiting
            (message,) = (await channel.history()).messages
            assert message.data == "+"
            with pytest.raises(SessionClosed):
                await channel.append(serial, more("+"))

    run(main())


def test_channels_are_opened_once() -> None:
    async def main() -> None:
        async with still(ManualClock()) as here:
            with pytest.raises(InvalidSessionArgument, match="opened before"):
                await here.channels.open()
        await StoredChannels(here.store, ManualClock()).close()

    run(main())
