from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.receipt import read_receipts
from perdure.cli.runs import say
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into, receipts_of
from perdure.cli.typed import signed
from perdure.cli.words import moment, number_of
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.errors import CommandError, StorageMissing

_LEFT: Final = (
    "is erased from the database, but large values stand in a blob store that was not given: erase"
    " it again and name the App that has it, with --app MODULE:APP, to delete them as well"
)
_OPEN: Final = {ReceiptState.IN_FLIGHT, ReceiptState.AMBIGUOUS}


def add_erase(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    what = (
        "delete what a run that has ended was given, recorded and came to, or the receipts of what"
        " is no run; who and why stays"
    )
    command = add(commands, "erase", what, store=True)
    command.add_argument(
        "run_id",
        metavar="RUN",
        help="the run's id, or what receipts outside of runs belong to, as `perdure effects` shows",
    )
    command.add_argument("--why", required=True, metavar="TEXT", help="the reason, which is kept")
    command.add_argument("--by", metavar="NAME", help="who decides (the name of the login)")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument(
        "--rewrite",
        action="store_true",
        help="write the whole database anew, so that no fragment is left; others wait meanwhile",
    )


async def erase(options: argparse.Namespace, screen: Screen) -> Exit:
    """Delete what a run that has ended holds, or receipts alone, once a person has agreed."""
    by, why = signed(options)
    async with looked_into(options) as app:
        if await app.store.read_run(options.run_id) is None:
            receipts = await read_receipts(app, options.run_id)
            if receipts:
                return await _erase_receipts(app, receipts, options, screen)
        before = await app.find(options.run_id)
        gone = before.tombstone
        if gone is not None and gone.whole and not options.rewrite:
            what = f"was erased by {gone.by} already; nothing was done"
            return say(screen, before, what, Exit.NOT_WELL)
        # A run that cannot be erased is refused without a question.
        about = (
            f"run {before.run_id} of {before.function}@{before.version} is {before.state.value},"
            f" created {moment(before.created_at)}"
        )
        if before.state.ended and not options.yes and not agreed(about, screen):
            return say(screen, before, "stays as it is; nothing was done", Exit.NOT_WELL)
        try:
            row = await app.erase(options.run_id, by=by, why=why, rewrite=options.rewrite)
        except StorageMissing:
            row = await app.find(options.run_id)
            if app.blobs is not None or row.tombstone is None:
                raise
            return say(screen, row, _LEFT, Exit.NOT_WELL)
    return say(screen, row, "is erased")


async def _erase_receipts(
    app: App, receipts: Sequence[Receipt], options: argparse.Namespace, screen: Screen
) -> Exit:
    """Delete the receipts that `guard` wrote for something that is no run here."""
    by, why = signed(options)
    of = receipts[0].run_id
    if options.rewrite:
        raise CommandError(f"--rewrite is for runs, and {of} is none here: leave it out")
    keys = [receipt.operation_key for receipt in receipts]
    about = f"{of} is no run here, and has {number_of(len(keys), 'receipt')}"
    # Receipts that cannot be erased are refused without a question.
    is_open = any(receipt.state in _OPEN for receipt in receipts)
    count = 0
    code, what = Exit.NOT_WELL, "stay as they are; nothing was done"
    if options.yes or is_open or agreed(about, screen):
        async with receipts_of(app) as store:
            count = await store.erase(of, by=by, why=why)
        code, what = Exit.OK, "are erased"
    screen.document({"run_id": of, "operation_keys": keys, "erased": count})
    screen.line(f"the receipts of {of} {what}: {', '.join(keys)}")
    return code


def agreed(about: str, screen: Screen) -> bool:
    """Ask on the terminal; raises `CommandError` where nobody can be asked."""
    if screen.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError("erasing cannot be undone: pass --yes where nobody can be asked")
    screen.note(f"{about}; what is erased cannot be brought back")
    # The loop turns Ctrl-C into a cancellation, which a blocked read would not notice.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print("erase it? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    finally:
        signal.signal(signal.SIGINT, handler)
