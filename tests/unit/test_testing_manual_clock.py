from __future__ import annotations

import asyncio

import pytest

from perdure.testing.manual_clock import ManualClock


async def _sleep_and_tell(clock: ManualClock, seconds: float, told: list[float]) -> None:
    await clock.sleep(seconds)
    told.append(seconds)


def test_advancing_wakes_those_who_slept_enough_earliest_first() -> None:
    async def main() -> tuple[list[float], list[float]]:
        clock = ManualClock()
        told: list[float] = []
        async with asyncio.TaskGroup() as group:
            for seconds in (3.0, 1.0, 2.0):
                group.create_task(_sleep_and_tell(clock, seconds, told))
            await clock.until_sleeping(3)
            clock.advance(2.5)
            await asyncio.sleep(0)
            woken = list(told)
            clock.advance(0.5)
        return woken, told

    woken, told = asyncio.run(main())
    assert woken == [1.0, 2.0]
    assert told == [1.0, 2.0, 3.0]


def test_many_small_steps_add_up() -> None:
    async def main() -> None:
        clock = ManualClock()
        sleeper = asyncio.create_task(clock.sleep(0.8))
        await clock.until_sleeping()
        for _ in range(8):
            clock.advance(0.1)
        await asyncio.wait_for(sleeper, 60)

    asyncio.run(main())


def test_a_jump_moves_wall_time_only() -> None:
    async def main() -> tuple[float, float, list[float]]:
        clock = ManualClock(now=1000.0)
        sleeper = asyncio.create_task(clock.sleep(10))
        await clock.until_sleeping()
        clock.advance(4)
        clock.jump(300)
        remaining = list(clock.sleeping)
        sleeper.cancel()
        return clock.now(), clock.monotonic(), remaining

    assert asyncio.run(main()) == (1304.0, 4.0, [6.0])


def test_a_cancelled_sleeper_is_forgotten() -> None:
    async def main() -> list[float]:
        clock = ManualClock()
        sleepers = [asyncio.create_task(clock.sleep(seconds)) for seconds in (1, 2)]
        await clock.until_sleeping(2)
        sleepers[0].cancel()
        clock.advance(1)
        with pytest.raises(asyncio.CancelledError):
            await sleepers[0]
        left = list(clock.sleeping)
        clock.advance(1)
        await sleepers[1]
        return left

    assert asyncio.run(main()) == [1.0]


def test_waiting_for_sleepers_counts_them() -> None:
    async def main() -> list[bool]:
        clock = ManualClock()
        waiting = asyncio.create_task(clock.until_sleeping(2))
        seen: list[bool] = []
        sleepers = []
        for _ in range(2):
            sleepers.append(asyncio.create_task(clock.sleep(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append(waiting.done())
        clock.advance(1)
        await asyncio.gather(*sleepers, clock.sleep(0), clock.sleep(-1))
        return seen

    assert asyncio.run(main()) == [False, True]
