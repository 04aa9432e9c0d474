from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import looked_into
from perdure.engine.queues import QueueRow

_COLUMNS: Final = (
    Column("queue"),
    Column("pending", number=True),
    Column("running", number=True),
    Column("at once", number=True),
    Column("per key", number=True, dispensable=1),
    Column("rate", dispensable=1),
    Column("paused", below=True),
)


def add_queues(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    queues = add(commands, "queues", "list queues, what waits in them and their limits", store=True)
    below = queues.add_subparsers(dest="queues_command", metavar="COMMAND")
    for name, what in (
        ("pause", "keep the runs of a queue from beginning and from going on"),
        ("resume", "let the runs of a queue begin and go on"),
    ):
        command = add(below, name, what, store=True, below=True)
        command.add_argument("name", metavar="NAME", help="the queue's name")


async def queues(options: argparse.Namespace, screen: Screen) -> Exit:
    """List queues, or pause or resume one."""
    if options.queues_command is None:
        screen.need_tables()
    async with looked_into(options) as app:
        match options.queues_command:
            case "pause":
                await app.pause_queue(options.name)
            case "resume":
                await app.resume_queue(options.name)
            case _:
                return _list(await app.queues(), screen)
        (row,) = [row for row in await app.queues() if row.name == options.name]
    screen.document(_describe(row))
    screen.line(f"queue {row.name} {'is paused' if row.paused else 'goes on'}")
    return Exit.OK


def _list(rows: Sequence[QueueRow], screen: Screen) -> Exit:
    screen.document({"queues": [_describe(row) for row in rows]})
    if rows:
        screen.show(Sheet("", _COLUMNS, map(_cells, rows)))
    else:
        screen.line("no queues: a worker writes those that its App declares")
    return Exit.OK


def _describe(row: QueueRow) -> dict[str, Any]:
    limits = row.limits
    return {
        "name": row.name,
        "pending": row.pending,
        "running": row.running,
        "concurrency": limits.concurrency,
        "key_concurrency": limits.key_concurrency,
        "rate_runs": limits.rate_runs,
        "rate_seconds": limits.rate_seconds,
        "paused": row.paused,
    }


def _cells(row: QueueRow) -> tuple[object, ...]:
    limits = row.limits
    rate = "" if limits.rate_runs is None else f"{limits.rate_runs} in {limits.rate_seconds:g} s"
    bounds = ("" if each is None else each for each in (limits.concurrency, limits.key_concurrency))
    return (row.name, row.pending, row.running, *bounds, rate, "paused" if row.paused else "")
