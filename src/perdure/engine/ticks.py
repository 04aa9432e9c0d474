from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.engine.registry import Registry
from perdure.engine.schedules import BACKLOG, Plan, ScheduleRow, plan, tick_id
from perdure.engine.store import NewRun, RunStore
from perdure.engine.timetable import Schedule
from perdure.observe import log
from perdure.ports import Ports

_LOOK_SECONDS: Final = 1.0
"""How long it takes at most until a pause, a resumption or another rule is heard of."""

_NEVER: Final = 2**62


class Ticks:
    """Starts the runs of one App's schedules as they come due, beside any number of others.

    A run is started first and its tick is counted then: a crash between the two leaves a tick that
    is started again under the same id, which is the same run.
    """

    def __init__(self, store: RunStore, registry: Registry, ports: Ports) -> None:
        self._store = store
        self._registry = registry
        self._clock = ports.clock
        self._observer = ports.observer
        self._declared: set[str] = set()
        self._next: dict[str, int] = {}
        self._looked_at = float("-inf")

    async def sweep(self) -> int:
        """Start a bounded number of runs whose ticks are due; return how many there were.

        Idempotent and safe to call from any number of workers. Durable when it returns.
        """
        schedules = self._registry.timetable.all()
        if not schedules:
            return 0
        await self._declare(schedules)
        now, looked_at = int(self._clock.now()), self._clock.monotonic()
        overdue = looked_at - self._looked_at >= _LOOK_SECONDS
        if not overdue and all(tick > now for tick in self._next.values()):
            return 0
        self._looked_at = looked_at
        rows = {row.name: row for row in await self._store.list_schedules()}
        return sum([await self._tick(schedule, rows, now) for schedule in schedules])

    async def _declare(self, schedules: Sequence[Schedule]) -> None:
        for it in schedules:
            if it.name not in self._declared:
                now = int(self._clock.now())
                await self._store.declare_schedule(it.name, it.function, it.rule.text, now)
                self._declared.add(it.name)
                self._looked_at = float("-inf")

    async def _tick(self, schedule: Schedule, rows: Mapping[str, ScheduleRow], now: int) -> int:
        row = rows.get(schedule.name)
        tick = self._next.pop(schedule.name, now)
        if row is None or row.paused or row.rule != schedule.rule.text:
            return 0
        started = 0
        # What others do meanwhile makes the next tick later, and never earlier.
        if tick <= now:
            counted_to = row.counted_to
            planned = plan(schedule.rule, schedule.catch_up, counted_to, now)
            if planned is not None:
                started = await self._start(schedule, planned)
                if await self._store.count_ticks(row, planned.counted_to):
                    counted_to = planned.counted_to
                    _tell(schedule, planned)
            tick = next(schedule.rule.after(counted_to), _NEVER)
        self._next[schedule.name] = tick
        return started

    async def _start(self, schedule: Schedule, planned: Plan) -> int:
        version = self._registry.find(schedule.function).version
        runs = [
            NewRun(
                tick_id(schedule.name, tick),
                schedule.function,
                version,
                schedule.input_json,
                self._clock.now(),
            )
            for tick in planned.ticks
        ]
        # Together, so that they share a commit; and all of them, before the first error is told.
        results = await asyncio.gather(
            *(self._store.start_run(run, None) for run in runs), return_exceptions=True
        )
        started = 0
        for result in results:
            if isinstance(result, BaseException):
                raise result
            started += result.created
        self._observer.count("perdure_run_started_total", started)
        return started


def _tell(schedule: Schedule, planned: Plan) -> None:
    if planned.dropped:
        some = f"only the newest {BACKLOG} get runs" if planned.ticks else "none of them gets a run"
        log.warning("schedule %s: ticks were missed, and %s", schedule.name, some)
