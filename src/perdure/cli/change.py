from __future__ import annotations

import argparse

from perdure.cli.exits import Exit
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import store_of
from perdure.engine.store import RunRow, RunState


async def cancel(options: argparse.Namespace, screen: Screen) -> Exit:
    """Cancel a run, or ask the worker that executes it to."""
    app = store_of(options)
    async with app.connect(create=False):
        await app.handle(options.run_id).cancel()
        row = await app.find(options.run_id)
    screen.document(describe(row))
    match row.state:
        case RunState.CANCELLED:
            return _say(screen, row, "is cancelled")
        case RunState.RUNNING:
            return _say(screen, row, "is running; its worker has been asked to cancel it")
        case _:
            return _say(screen, row, f"is {row.state.value} already", Exit.NOT_WELL)


async def resume(options: argparse.Namespace, screen: Screen) -> Exit:
    """Make a run that needs attention wait for a worker again."""
    app = store_of(options)
    async with app.connect(create=False):
        row = await app.resume(options.run_id)
    screen.document(describe(row))
    if row.state.final:
        return _say(screen, row, f"is {row.state.value} and never goes on", Exit.NOT_WELL)
    return _say(screen, row, f"is {row.state.value} and goes on when a worker serves it")


def _say(screen: Screen, row: RunRow, what: str, code: Exit = Exit.OK) -> Exit:
    screen.line(f"run {row.run_id} {what}")
    return code
