from __future__ import annotations

import argparse

from perdure.cli.exits import Exit
from perdure.cli.operation import show_operation
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.timeline import document, read_timeline, sections


async def show(options: argparse.Namespace, screen: Screen) -> Exit:
    """Show a run, its attempts and its operations, or one operation whole."""
    async with looked_into(options) as app:
        if options.operation is not None:
            await show_operation(app, options.run_id, options.operation, screen)
            return Exit.OK
        screen.need_tables()
        timeline = await read_timeline(app, options.run_id)
    if screen.as_json:
        screen.document(document(timeline, screen.place))
    else:
        screen.show(*sections(timeline, screen.place))
    return Exit.OK
