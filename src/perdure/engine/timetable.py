from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.engine.schedules import CatchUp, Rule, ScheduleRow
from perdure.errors import InvalidOptions


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it is declared; each tick starts the newest version of its function."""

    name: str
    function: str
    input_json: bytes
    rule: Rule
    catch_up: CatchUp


class Timetable:
    """The schedules of an App, by name."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}

    def add(self, schedule: Schedule) -> None:
        """Add a schedule; raises `InvalidOptions` where there is one of its name."""
        if schedule.name in self._schedules:
            raise InvalidOptions(
                f"there is a schedule {schedule.name!r} already: give this one another name"
            )
        self._schedules[schedule.name] = schedule

    def all(self) -> Sequence[Schedule]:
        """Return the schedules, in the order in which they were added."""
        return [*self._schedules.values()]

    def foresee(self, rows: Iterable[ScheduleRow]) -> Sequence[ScheduleRow]:
        """Return rows with their next ticks, where these are known here."""
        return [msgspec.structs.replace(row, next_at=self._next(row)) for row in rows]

    def _next(self, row: ScheduleRow) -> int | None:
        schedule = self._schedules.get(row.name)
        if schedule is None or row.paused or schedule.rule.text != row.rule:
            return None
        return next(schedule.rule.after(row.counted_to), None)
