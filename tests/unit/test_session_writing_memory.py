"""The channel in memory keeps what channels promise."""

from __future__ import annotations

import asyncio

import pytest

from perdure.channels.memory import MemoryLog
from perdure.errors import InvalidSessionArgument
from perdure.session.channel import Draft, Revision


def draft(number: int, *, ephemeral: bool = False) -> Draft:
    return Draft(
        message_id=f"m{number}",
        name="ai-output",
        transport={"stream": "true"},
        data=f"{number}",
        ephemeral=ephemeral,
    )


def revision(data: str) -> Revision:
    return Revision(data=data, transport={"stream": "true"}, codec={})


def test_history_has_messages_as_they_stand_in_pages_without_gaps() -> None:
    async def main() -> None:
        log = MemoryLog()
        channel = log.channel("a")
        serials = await channel.publish([draft(number) for number in range(5)])
        assert serials == sorted(serials)
        assert await channel.publish([draft(3)]) == [serials[3]]
        await channel.publish([draft(9, ephemeral=True)])
        await channel.append(serials[1], revision("+"))
        await channel.update(serials[2], revision("new"))
        found: list[str] = []
        before, more = None, True
        while more:
            page = await channel.history(before, 2)
            found += [message.data for message in page.messages]
            before, more = page.messages[-1].serial, page.more
        assert found == ["4", "3", "new", "1+", "0"]
        with pytest.raises(InvalidSessionArgument, match="no message"):
            await channel.append("nowhere", revision("x"))

    asyncio.run(main())


def test_a_subscriber_is_given_what_is_behind_the_cursor() -> None:
    async def main() -> None:
        log = MemoryLog()
        channel = log.channel("a")
        first, second = await channel.publish([draft(0), draft(1)])
        async with channel.subscribe() as live, channel.subscribe(first) as behind:
            version = await log.channel("b").append(second, revision("+"))
            assert version > second
            assert (await anext(live)).version == version
            assert [(await anext(behind)).version for _ in range(2)] == [second, version]
            # Attaching twice is harmless, and a delivery is of whoever wrote it.
            waiting = asyncio.ensure_future(anext(live))
            await channel.publish([draft(2)])
            assert (await waiting).client_id == "a"
            assert (await anext(behind)).data == "2"

    asyncio.run(main())
