from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from perdure.app import App
from perdure.cli.approval import approvals_sheet, describe_approval, facts
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.typed import positive
from perdure.errors import RunErased, UnknownApproval

_LIMIT: Final = 100


def add_approvals(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    approvals = add(
        commands,
        "approvals",
        "list what runs wait for an answer to, or show one of these whole",
        store=True,
    )
    approvals.add_argument("run_id", nargs="?", metavar="RUN", help="only what this run asks for")
    approvals.add_argument(
        "item_id", nargs="?", metavar="ITEM", help="show this item whole, and how to answer it"
    )
    approvals.add_argument("--all", action="store_true", help="what was answered, too")
    approvals.add_argument(
        "--limit", type=positive(int), default=_LIMIT, help=f"at most N ({_LIMIT})", metavar="N"
    )


async def approvals(options: argparse.Namespace, screen: Screen) -> Exit:
    """List what runs ask for: what waits for an answer, or all of it."""
    if options.item_id is not None:
        return await _show(options, screen)
    screen.need_tables()
    run_id = options.run_id
    async with looked_into(options) as app:
        if run_id is not None:
            await known(app, run_id)
        found = await app.approvals(run_id, open_only=not options.all, limit=options.limit + 1)
    shown = found[: options.limit]
    screen.document({"approvals": [describe_approval(each, screen.place) for each in shown]})
    if shown:
        screen.show(approvals_sheet(shown, answered=options.all))
        first = shown[0]
        item = f"perdure approvals {first.run_id} {first.item_id}{screen.place}"
        screen.line(f"\n`{item}` shows the first one whole, and how to answer it")
    else:
        who = "no run" if run_id is None else f"run {run_id}"
        nothing = "asked for anything" if run_id is None else "asked for nothing"
        waits = "waits for an answer" if run_id is None else "waits for no answer"
        screen.line(f"{who} {nothing if options.all else waits}")
    if len(found) > len(shown):
        screen.line(f"there are more than {options.limit}; see them with --limit")
    return Exit.OK


async def _show(options: argparse.Namespace, screen: Screen) -> Exit:
    """Show something that a run asked for whole, and how to answer it."""
    async with looked_into(options) as app:
        await known(app, options.run_id)
        found = await app.store.read_approval(options.run_id, options.item_id)
        if found is None:
            raise await unknown(app, options.run_id, options.item_id, screen.place)
    screen.document(describe_approval(found, screen.place))
    screen.line(facts(found, screen.place))
    return Exit.OK


async def known(app: App, run_id: str) -> None:
    """Check that there is a run of that id; raises `UnknownRun` or `RunErased`."""
    gone = (await app.find(run_id)).tombstone
    if gone is not None:
        raise RunErased(run_id, by=gone.by, why=gone.why)


async def unknown(app: App, run_id: str, item_id: str, place: str) -> UnknownApproval:
    """Return what tells that a run asked for nothing of an id, and for what it did ask."""
    items = [each.item_id for each in await app.approvals(run_id, limit=_LIMIT)]
    waits = f"; it waits for an answer to {', '.join(items)}" if items else ""
    return UnknownApproval(
        f"run {run_id} asked for nothing under the id {item_id!r}{waits}: `perdure approvals"
        f" {run_id}{place} --all` lists what it asked for"
    )
