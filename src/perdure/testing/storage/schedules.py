from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from perdure.engine.schedules import ScheduleRow
from perdure.testing.storage.expecting import expect
from perdure.testing.storage.scene import Scene

_NOW: Final = 1_700_000_000
_BEAT: Final = ScheduleRow("beat", "work", "every 10 s", _NOW, paused=False)
_DAILY: Final = ScheduleRow("daily", "work", "0 9 * * * (UTC)", _NOW + 5, paused=False)


async def a_schedule_is_written_once_and_counts_from_then(scene: Scene) -> None:
    """Whoever declares it anew, later and with another rule, changes the rule and no count."""
    one, other = await scene.store(), await scene.store()
    expect([*await one.list_schedules()], [], "schedules of an empty store")
    await other.declare_schedule("daily", "work", _DAILY.rule, _NOW + 5)
    for now in (_NOW, _NOW + 7):
        await one.declare_schedule("beat", "work", _BEAT.rule, now)
    expect([*await other.list_schedules()], [_BEAT, _DAILY], "the schedules, by name")
    for function, rule in (("work", "every 20 s"), ("other", "every 20 s")):
        await other.declare_schedule("beat", function, rule, _NOW + 9)
        changed = msgspec.structs.replace(_BEAT, function=function, rule=rule)
        expect([*await one.list_schedules()], [changed, _DAILY], "what was declared anew")


async def one_of_those_that_count_at_once_does(scene: Scene) -> None:
    """The others find that it does not stand as they saw it; far instants are exact as well."""
    stores = [await scene.store() for _ in range(4)]
    await stores[0].declare_schedule("daily", "work", _DAILY.rule, _NOW + 5)
    await stores[0].declare_schedule("beat", "work", _BEAT.rule, _NOW)
    seen = _BEAT
    for counted_to in (_NOW + 10, _NOW + 20, 2**40 + 1):
        counted = await asyncio.gather(*(store.count_ticks(seen, counted_to) for store in stores))
        expect(counted.count(True), 1, "who counted")
        seen = msgspec.structs.replace(seen, counted_to=counted_to)
        expect([*await stores[1].list_schedules()], [seen, _DAILY], "what is counted")


async def nothing_is_counted_by_another_rule(scene: Scene) -> None:
    """Who declared a schedule before somebody else did counts it no more."""
    one, other = await scene.store(), await scene.store()
    await one.declare_schedule("beat", "work", _BEAT.rule, _NOW)
    await other.declare_schedule("beat", "work", "every 20 s", _NOW)
    expect(await one.count_ticks(_BEAT, _NOW + 10), False, "counting by the rule of before")  # noqa: FBT003
    now = msgspec.structs.replace(_BEAT, rule="every 20 s")
    expect(await one.count_ticks(now, _NOW + 20), True, "counting by the rule of now")  # noqa: FBT003


async def a_paused_schedule_counts_from_its_resumption(scene: Scene) -> None:
    """It stays paused, whoever declares it, and a resumption never counts back."""
    one, other = await scene.store(), await scene.store()
    for row in (_BEAT, _DAILY):
        await one.declare_schedule(row.name, "work", row.rule, row.counted_to)
    expect(await one.resume_schedule("beat", _NOW + 3), True, "resuming what is not paused")  # noqa: FBT003
    expect(await other.pause_schedule("beat"), True, "pausing")  # noqa: FBT003
    await one.declare_schedule("beat", "work", _BEAT.rule, _NOW + 9)
    paused = msgspec.structs.replace(_BEAT, paused=True)
    expect([*await one.list_schedules()], [paused, _DAILY], "a schedule that is paused")
    for seen in (_BEAT, paused):
        expect(await one.count_ticks(seen, _NOW + 10), False, "counting while it is paused")  # noqa: FBT003
    for now, counted_to in ((_NOW + 34, _NOW + 34), (_NOW - 50, _NOW + 34)):
        await other.pause_schedule("beat")
        expect(await one.resume_schedule("beat", now), True, "resuming")  # noqa: FBT003
        resumed = msgspec.structs.replace(_BEAT, counted_to=counted_to)
        expect([*await other.list_schedules()], [resumed, _DAILY], "what goes on")
    for found in (await one.pause_schedule("bet"), await one.resume_schedule("bet", _NOW)):
        expect(found, False, "a schedule that there is not")  # noqa: FBT003
