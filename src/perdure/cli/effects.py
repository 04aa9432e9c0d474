from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Final

from perdure.cli.decide import settle
from perdure.cli.dossier import document, facts, read_dossier
from perdure.cli.exits import Exit
from perdure.cli.follow import watch
from perdure.cli.receipt import describe_receipt, receipts_sheet
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into, receipts_of, store_of


async def effects(options: argparse.Namespace, screen: Screen) -> Exit:
    """Do what is asked about effects; list them where nothing else is."""
    return await _COMMANDS[options.effects_command](options, screen)


async def _list(options: argparse.Namespace, screen: Screen) -> Exit:
    """List receipts: those of which nobody knows, or all of them."""
    screen.need_tables()
    async with receipts_of(store_of(options)) as store:
        found = await store.list(
            ambiguous_only=not options.all, limit=options.limit + 1, run_id=options.run
        )
    shown = found[: options.limit]
    screen.document({"receipts": [describe_receipt(receipt) for receipt in shown]})
    if shown:
        screen.show(receipts_sheet(shown))
    else:
        of_run = "" if options.run is None else f" of run {options.run}"
        screen.line(f"no receipts{of_run}" if options.all else f"no effect{of_run} is ambiguous")
    if len(found) > len(shown):
        screen.line(f"there are more than {options.limit}; see them with --limit")
    return Exit.OK


async def _show(options: argparse.Namespace, screen: Screen) -> Exit:
    """Show everything known of one effect, and how to settle it."""
    async with looked_into(options) as app, receipts_of(app) as store:
        dossier = await read_dossier(app, store, options.key)
    screen.document(document(dossier, screen.place))
    screen.line(facts(dossier, screen.place))
    return Exit.OK


_COMMANDS: Final[dict[str | None, Callable[[argparse.Namespace, Screen], Awaitable[Exit]]]] = {
    None: _list,
    "show": _show,
    "settle": settle,
    "watch": watch,
}
