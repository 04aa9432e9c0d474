from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from perdure.cli.approvals import known
from perdure.cli.exits import Exit
from perdure.cli.inbox import describe_message
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.typed import read_json, signer
from perdure.cli.words import moment
from perdure.engine.store import RunRow, RunState
from perdure.errors import MessageConflict
from perdure.inbox import Message


def add_send(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    send = add(commands, "send", "send a message to a run, which waits in its inbox", store=True)
    send.add_argument("run_id", metavar="RUN", help="the run's id")
    send.add_argument("name", metavar="NAME", help="the name that the run waits for")
    send.add_argument(
        "payload", nargs="?", metavar="JSON", help="what it says (null); - reads it from stdin"
    )
    send.add_argument(
        "--id", dest="message_id", help="the message's id: the same id is the same message"
    )
    send.add_argument("--by", metavar="NAME", help="who sends it (the login name)")


async def send(options: argparse.Namespace, screen: Screen) -> Exit:
    """Put a message into the inbox of a run."""
    payload = None if options.payload is None else read_json(options.payload, "message")
    by, run_id = signer(options), options.run_id
    async with looked_into(options) as app:
        await known(app, run_id)
        try:
            message = await app.send(run_id, options.name, payload, id=options.message_id, by=by)
        except MessageConflict as error:
            see = f"perdure show {run_id}{screen.place}"
            raise MessageConflict(
                f"{error}; nothing was sent: leave --id out, or type another one; `{see}` shows"
                " what was sent"
            ) from error
        row = await app.find(run_id)
    screen.document({"message": describe_message(message), "run": describe(row)})
    screen.line(f"message {message.name} ({message.message_id}) {_where(message, row)}")
    return Exit.OK


def _where(message: Message, row: RunRow) -> str:
    """Say where a message is, and what comes of it."""
    if message.taken_by is not None:
        step_id, sequence = message.taken_by
        at = moment(message.taken_at)
        return f"was taken by {step_id}/{sequence} of run {row.run_id}, {at}"
    inbox = f"is in the inbox of run {row.run_id}"
    match row.state:
        case RunState.PENDING:
            return f"{inbox}, which goes on when a worker serves it"
        case RunState.SUSPENDED | RunState.SLEEPING:
            return f"{inbox}, which is {row.state.value} and does not wait for it now"
        case _:
            return f"{inbox}, which is {row.state.value}"
