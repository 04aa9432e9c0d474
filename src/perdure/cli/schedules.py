from __future__ import annotations

from typing import Any, Final

from perdure.cli.pausable import Pausable
from perdure.cli.sheet import Column
from perdure.cli.words import instant, moment
from perdure.engine.schedules import ScheduleRow

_COLUMNS: Final = (
    Column("schedule"),
    Column("starts"),
    Column("ticks"),
    Column("counted to (UTC)", dispensable=1),
    Column("next (UTC)"),
)


def _describe(row: ScheduleRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "function": row.function,
        "rule": row.rule,
        "counted_to": instant(row.counted_to),
        "paused": row.paused,
        "next_at": instant(row.next_at),
    }


def _cells(row: ScheduleRow) -> tuple[object, ...]:
    upcoming = "" if row.next_at is None else moment(row.next_at)
    following = "paused" if row.paused else upcoming
    return (row.name, row.function, row.rule, moment(row.counted_to), following)


SCHEDULES: Final = Pausable(
    noun="schedule",
    lists="list what starts runs by the clock",
    pauses="keep a schedule from starting anything",
    resumes="let a schedule go on; what it would have started meanwhile is dropped",
    columns=_COLUMNS,
    rows=lambda app: app.schedules(),
    pause=lambda app, name: app.pause_schedule(name),
    resume=lambda app, name: app.resume_schedule(name),
    describe=_describe,
    cells=_cells,
)
"""The command that lists schedules; the next ticks are known to who names the App."""
