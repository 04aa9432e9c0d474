from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, Final, cast

from perdure.app import App
from perdure.approvals import Answer, Approval, ApprovalKind, Approve, Deny, Result
from perdure.cli.approval import describe_approval, said, state_of, what_of
from perdure.cli.approvals import known, unknown
from perdure.cli.exits import Exit
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.typed import read_json, signer
from perdure.cli.words import moment
from perdure.engine.store import RunRow, RunState
from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    CommandError,
    UnknownApproval,
)

_DIGEST_TYPED: Final = 8
_digest: Final = re.compile(r"[0-9a-f]{8,64}")


def add_answers(commands: Any, add: Callable[..., Any]) -> None:
    """Add the commands that answer, and their options, to the command line."""
    approve = _add(commands, add, "approve", "let a run do what it asks for")
    approve.add_argument(
        "--arguments",
        metavar="JSON",
        help="with these arguments, an object, instead of those that it asks with; - reads stdin",
    )
    deny = _add(commands, add, "deny", "do not let a run do what it asks for")
    deny.add_argument(
        "--why", default="", metavar="TEXT", help="the reason, which is told whoever wanted to"
    )
    answer = _add(commands, add, "answer", "tell a run what came of what it asks for")
    answer.add_argument("value", metavar="JSON", help="what came of it; - reads it from stdin")
    answer.add_argument(
        "--error", action="store_true", help="it went wrong, and JSON says what did"
    )


def _add(commands: Any, add: Callable[..., Any], name: str, what: str) -> Any:
    command = add(commands, name, what, store=True)
    command.add_argument("run_id", metavar="RUN", help="the run's id")
    command.add_argument("item_id", metavar="ITEM", help="the item, as `perdure approvals` has it")
    command.add_argument("--by", metavar="NAME", help="who decides (the login name)")
    command.add_argument(
        "--digest",
        metavar="HEX",
        help="the digest of the arguments that were looked at, or its beginning of"
        f" {_DIGEST_TYPED} characters or more; if it is another one, nothing is written",
    )
    return command


async def approve(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write that something may be done."""
    arguments = None if options.arguments is None else _object(options.arguments)
    return await _answer(options, Approve(arguments), screen)


async def deny(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write that something may not be done."""
    return await _answer(options, Deny(options.why), screen)


async def answer(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write what came of something."""
    value = read_json(options.value, "answer")
    return await _answer(options, Result(value, options.error), screen)


async def _answer(options: argparse.Namespace, given: Answer, screen: Screen) -> Exit:
    by, digest = signer(options), _checked(options.digest)
    run_id, item_id, place = options.run_id, options.item_id, screen.place
    async with looked_into(options) as app:
        await known(app, run_id)
        found = await app.store.read_approval(run_id, item_id)
        if found is None:
            raise await unknown(app, run_id, item_id, place)
        _check_kind(found, given, place)
        if digest is not None and found.digest.startswith(digest):
            digest = found.digest
        resolved = await _resolve(app, found, given, by, digest, place)
        left = await app.approvals(run_id)
        row = await app.find(run_id)
    items = [each.item_id for each in left]
    screen.document(
        {
            "approval": describe_approval(resolved, place),
            "run": describe(row),
            "open": items,
        }
    )
    screen.line(f"{what_of(resolved)}, item {item_id} of run {run_id}, is {said(given)} by {by}")
    screen.line(_what_follows(row, items))
    return Exit.OK


def _object(text: str) -> dict[str, Any]:
    arguments = read_json(text, "arguments")
    if isinstance(arguments, dict):
        return cast("dict[str, Any]", arguments)
    raise CommandError(
        f"""the arguments {text!r} are no JSON object, such as '{{"order": "A-1042"}}'"""
    )


def _checked(digest: str | None) -> str | None:
    """Return a digest as it is compared; raises `CommandError` for what is none."""
    if digest is None:
        return None
    text = digest.lower()
    if not _digest.fullmatch(text):
        raise CommandError(
            f"--digest {digest!r} is no digest: it takes {_DIGEST_TYPED} to 64 characters of 0-9"
            " a-f, as `perdure approvals` shows them"
        )
    return text


def _check_kind(found: Approval, given: Answer, place: str) -> None:
    """Raise `CommandError` for an approval of what is done elsewhere, and for its contrary."""
    item, what = f"{found.run_id} {found.item_id}", what_of(found)
    if found.kind is ApprovalKind.EXTERNAL and isinstance(given, Approve):
        raise CommandError(
            f"{what} is asked for, and there is nothing to approve: `perdure answer {item}"
            f" JSON{place}` tells it, `perdure deny {item}{place}` that there will be none"
        )
    if found.kind is ApprovalKind.APPROVAL and isinstance(given, Result):
        raise CommandError(
            f"{what} is asked for, and nothing has come of it yet: `perdure approve {item}{place}`"
            f" lets it be done, `perdure deny {item}{place}` does not"
        )


async def _resolve(
    app: App, found: Approval, given: Answer, by: str, digest: str | None, place: str
) -> Approval:
    """Write an answer; what is raised when it came too late says what to do."""
    run_id, item_id = found.run_id, found.item_id
    look = f"`perdure approvals {run_id} {item_id}{place}`"
    try:
        return await app.resolve(run_id, item_id, given, by=by, expect_digest=digest)
    except AlreadyResolved as error:
        now = await app.store.read_approval(run_id, item_id) or found
        when = f", {moment(error.at)}" if error.at is not None else ""
        told = (
            f"{what_of(found)}, item {item_id} of run {run_id}, was {state_of(now)} by"
            f" {error.by or 'somebody'}{when}; nothing was written: {look} shows what stands"
        )
        error.args = (told,)  # what the error says, with its own attributes
        raise
    except ApprovalChanged as error:
        raise ApprovalChanged(
            f"{what_of(found)}, item {item_id} of run {run_id}, is asked for with arguments of the"
            f" digest {found.digest}, not {digest}; nothing was written: {look} shows them"
        ) from error
    except ApprovalClosed as error:
        raise ApprovalClosed(
            f"{error}; nothing was written: `perdure show {run_id}{place}` shows what became of it"
        ) from error
    except UnknownApproval as error:
        raise await unknown(app, run_id, item_id, place) from error


def _what_follows(row: RunRow, left: list[str]) -> str:
    """Say what the answer leads to."""
    more = f"; it waits for an answer to {', '.join(left)} as well" if left else ""
    match row.state:
        case RunState.PENDING | RunState.SLEEPING | RunState.SUSPENDED:
            return f"run {row.run_id} goes on when a worker serves it{more}"
        case RunState.RUNNING:
            return f"run {row.run_id} is running, and goes on with it{more}"
        case _:
            return f"run {row.run_id} is {row.state.value}{more}"
