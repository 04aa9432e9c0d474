from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from perdure.cli.advice import settling, unsettled
from perdure.cli.dossier import commands, told
from perdure.cli.exits import Exit
from perdure.cli.receipt import next_of, read_receipts
from perdure.cli.runs import describe, say
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.effects.receipt import Receipt
from perdure.engine.store import RunRow, RunState

_RESUMABLE: Final = {RunState.NEEDS_ATTENTION, RunState.FAILED}


async def cancel(options: argparse.Namespace, screen: Screen) -> Exit:
    """Cancel a run, or ask the worker that executes it to."""
    async with looked_into(options) as app:
        before = await app.find(options.run_id)
        await app.handle(options.run_id).cancel()
        row = await app.find(options.run_id)
    match row.state:
        case RunState.CANCELLED if not before.state.ended:
            return say(screen, row, "is cancelled")
        case RunState.RUNNING:
            return say(screen, row, "is running; its worker has been asked to cancel it")
        case _:
            return say(screen, row, f"is {row.state} already; nothing was done", Exit.NOT_WELL)


async def resume(options: argparse.Namespace, screen: Screen) -> Exit:
    """Make a run that failed or needs attention wait for a worker again.

    One that waits for an effect to be settled would only be parked again, and stays as it is.
    """
    async with looked_into(options) as app:
        before = await app.find(options.run_id)
        awaited = unsettled(before, await read_receipts(app, options.run_id))
        row = before
        if awaited and not options.anyway:
            return _say_awaited(row, awaited, screen)
        if before.state in _RESUMABLE and before.tombstone is None:
            row = await app.resume(options.run_id)
    if row != before and awaited:
        again = "parked again if nobody knows of its effect by then"
        way = settling(awaited, screen.place)
        return say(screen, row, f"is {row.state}, and {again}: it waits for {way}")
    if row != before:
        return say(screen, row, f"is {row.state} and goes on when a worker serves it")
    erased = "" if row.tombstone is None else ", was erased"
    why = {
        RunState.RUNNING: "is running already",
        RunState.PENDING: "waits for a worker already",
    }.get(row.state, f"is {row.state}{erased} and never goes on")
    return say(screen, row, f"{why}; nothing was done", Exit.NOT_WELL)


def _say_awaited(row: RunRow, awaited: Sequence[Receipt], screen: Screen) -> Exit:
    """Say how to settle the effects that a run waits for."""
    typed = [command for receipt in awaited for command in commands(receipt, screen.place)]
    screen.document({**describe(row), "commands": typed})
    why = "nobody knows whether an effect of it was applied; nothing was done"
    screen.line(f"run {row.run_id} stays {row.state.value}: {why}")
    for receipt in awaited:
        asked = next_of(receipt)
        by_itself = "" if asked in {"a person", "exhausted"} else f", which is {asked} anyway"
        screen.line(f"look at {receipt.target!r}{by_itself}, and type one of these")
        screen.line("\n".join(told(receipt, screen.place)))
    again = f"perdure resume {row.run_id}{screen.place} --anyway"
    screen.line(f"`{again}` executes it all the same, for code that takes another turn now")
    return Exit.NOT_WELL
