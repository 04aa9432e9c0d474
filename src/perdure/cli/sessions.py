from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from perdure.app import App
from perdure.cli.erase import agreed
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import looked_into
from perdure.cli.typed import positive, signed
from perdure.cli.words import instant, moment, number_of

_COLUMNS: Final = (Column("session"), Column("written to"))


def add_sessions(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    listing = add(commands, "sessions", "list sessions, the last written to first", store=True)
    listing.add_argument(
        "--limit", type=positive(int), default=20, metavar="N", help="at most (20)"
    )
    below = listing.add_subparsers(dest="session_command", metavar="COMMAND")
    what = "delete the messages of a session, and what its runs, which have ended, held"
    erase = add(below, "erase", what, store=True, below=True)
    erase.add_argument("session", metavar="SESSION", help="the session's name")
    erase.add_argument("--why", required=True, metavar="TEXT", help="the reason, which is kept")
    erase.add_argument("--by", metavar="NAME", help="who decides (the name of the login)")
    erase.add_argument("--yes", action="store_true", help="do not ask")


async def sessions(options: argparse.Namespace, screen: Screen) -> Exit:
    """List sessions, or erase one."""
    if options.session_command == "erase":
        async with looked_into(options) as app:
            return await _erase(app, options, screen)
    screen.need_tables()
    async with looked_into(options) as app:
        rows = await app.sessions(limit=options.limit)
    documents = [{"session": row.session, "changed_at": instant(row.changed_at)} for row in rows]
    screen.document({"sessions": documents})
    if rows:
        cells = [(row.session, moment(row.changed_at)) for row in rows]
        screen.show(Sheet("", _COLUMNS, cells))
    else:
        screen.line("no sessions: nobody has said anything")
    return Exit.OK


async def _erase(app: App, options: argparse.Namespace, screen: Screen) -> Exit:
    by, why = signed(options)
    name: str = options.session
    if not options.yes and not agreed(f"session {name}", screen):
        screen.line(f"session {name} stays as it is; nothing was done")
        return Exit.NOT_WELL
    run_ids = await app.erase_session(name, by=by, why=why)
    screen.document({"session": name, "run_ids": run_ids})
    screen.line(f"session {name} is erased, with {number_of(len(run_ids), 'run')}")
    return Exit.OK
