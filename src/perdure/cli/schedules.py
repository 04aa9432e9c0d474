from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import looked_into
from perdure.cli.words import instant, moment
from perdure.engine.schedules import ScheduleRow

_COLUMNS: Final = (
    Column("schedule"),
    Column("starts"),
    Column("ticks"),
    Column("counted to (UTC)", dispensable=1),
    Column("next (UTC)"),
)


def add_schedules(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    schedules = add(commands, "schedules", "list what starts runs by the clock", store=True)
    below = schedules.add_subparsers(dest="schedules_command", metavar="COMMAND")
    for name, what in (
        ("pause", "keep a schedule from starting anything"),
        ("resume", "let a schedule go on; what it would have started meanwhile is dropped"),
    ):
        command = add(below, name, what, store=True, below=True)
        command.add_argument("name", metavar="NAME", help="the schedule's name")


async def schedules(options: argparse.Namespace, screen: Screen) -> Exit:
    """List schedules, or pause or resume one; the next ticks are known to who names the App."""
    if options.schedules_command is None:
        screen.need_tables()
    async with looked_into(options) as app:
        match options.schedules_command:
            case "pause":
                await app.pause_schedule(options.name)
            case "resume":
                await app.resume_schedule(options.name)
            case _:
                return _list(await app.schedules(), screen)
        (row,) = [row for row in await app.schedules() if row.name == options.name]
    screen.document(_describe(row))
    screen.line(f"schedule {row.name} {'is paused' if row.paused else 'goes on'}")
    return Exit.OK


def _list(rows: Sequence[ScheduleRow], screen: Screen) -> Exit:
    screen.document({"schedules": [_describe(row) for row in rows]})
    if rows:
        screen.show(Sheet("", _COLUMNS, map(_cells, rows)))
    else:
        screen.line("no schedules: a worker writes those that its App declares")
    return Exit.OK


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
