from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from perdure.cli.approvals import known
from perdure.cli.exits import Exit
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.typed import read_json


def add_fork(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    what = "start a new run that another one was up to an operation"
    fork = add(commands, "fork", what, store=True)
    fork.add_argument("run_id", metavar="RUN", help="the id of the other run")
    fork.add_argument("at", metavar="STEP/SEQ", help="the operation, as `perdure show` prints it")
    fork.add_argument(
        "--edit", metavar="JSON", help="what the operation came to instead; - reads it from stdin"
    )
    fork.add_argument("--id", dest="new_id", help="the id of the new run (one of its own)")
    fork.add_argument(
        "--repeat-effects",
        action="store_true",
        help="although what the other run did from there on may be done again",
    )


async def fork(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write a run that another one was up to an operation; any worker executes it."""
    given: dict[str, Any] = {}
    if options.edit is not None:
        given["edit"] = read_json(options.edit, "edit")
    async with looked_into(options) as app:
        await known(app, options.run_id)
        for row in await app.store.list_operations(options.run_id) if given else ():
            if f"{row.step_id}/{row.sequence}" == options.at and _is_call(row.step_id):
                # As the instances that the function returns, where the App knows it.
                given["edit"] = app.engine.answer_from_json(row.handler_id, given["edit"])
        handle = await app.fork(
            options.run_id,
            options.at,
            new_id=options.new_id,
            repeat_effects=options.repeat_effects,
            **given,
        )
        row = await app.find(handle.run_id)
    screen.document({"run": describe(row), "forked_from": options.run_id, "at": options.at})
    screen.line(f"run {row.run_id} goes on when a worker serves {row.function}@{row.version}")
    return Exit.OK


def _is_call(step_id: str) -> bool:
    # One of context.call: only its function says what it returns.
    return step_id == "call" or step_id.endswith(".call")
