from __future__ import annotations

import argparse

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.target import store_of
from perdure.cli.timeline import document, read_timeline, sections


async def show(options: argparse.Namespace, screen: Screen) -> Exit:
    """Show a run, its attempts and its operations."""
    app = store_of(options)
    async with app.connect(create=False):
        timeline = await read_timeline(app, options.run_id)
    if screen.as_json:
        screen.document(document(timeline))
    else:
        screen.show(*sections(timeline))
    return Exit.OK
