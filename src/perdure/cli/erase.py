from __future__ import annotations

import argparse
import signal
import sys

from perdure.cli.exits import Exit
from perdure.cli.runs import say
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.typed import signed
from perdure.cli.words import moment
from perdure.engine.store import RunRow
from perdure.errors import CommandError


async def erase(options: argparse.Namespace, screen: Screen) -> Exit:
    """Delete what a run that has ended holds, once a person has agreed."""
    by, why = signed(options)
    async with looked_into(options) as app:
        before = await app.find(options.run_id)
        gone = before.tombstone
        if gone is not None and gone.whole and not options.rewrite:
            what = f"was erased by {gone.by} already; nothing was done"
            return say(screen, before, what, Exit.NOT_WELL)
        # A run that cannot be erased is refused without a question.
        if before.state.ended and not options.yes and not _agreed(before, screen):
            return say(screen, before, "stays as it is; nothing was done", Exit.NOT_WELL)
        row = await app.erase(options.run_id, by=by, why=why, rewrite=options.rewrite)
    return say(screen, row, "is erased")


def _agreed(row: RunRow, screen: Screen) -> bool:
    """Ask on the terminal; raises `CommandError` where nobody can be asked."""
    if screen.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError("erasing cannot be undone: pass --yes where nobody can be asked")
    screen.note(
        f"run {row.run_id} of {row.function}@{row.version} is {row.state.value}, created"
        f" {moment(row.created_at)}; what is erased cannot be brought back"
    )
    # The loop turns Ctrl-C into a cancellation, which a blocked read would not notice.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print("erase it? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    finally:
        signal.signal(signal.SIGINT, handler)
