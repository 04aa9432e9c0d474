from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.cli.advice import settling, unsettled
from perdure.cli.dossier import commands, told
from perdure.cli.exits import Exit, exit_of
from perdure.cli.receipt import asked_of, read_receipts
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.waiting import PARKED, endings, read_waiting, standing
from perdure.effects.receipt import Receipt
from perdure.engine.store import RunRow, RunState
from perdure.errors import PerdureError

_RESUMABLE: Final = {RunState.NEEDS_ATTENTION, RunState.FAILED}


class Changed(msgspec.Struct, frozen=True):
    """What became of a run that was to be changed, as a document and as lines of text."""

    document: dict[str, Any]
    lines: Sequence[str]
    code: Exit = Exit.OK


async def cancel(options: argparse.Namespace, screen: Screen) -> Exit:
    """Cancel runs, or ask the workers that execute them to."""
    async with looked_into(options) as app:
        return await _each(options.run_ids, lambda run_id: _cancel(app, run_id), screen)


async def resume(options: argparse.Namespace, screen: Screen) -> Exit:
    """Make runs that failed or need attention wait for a worker again.

    One that waits for an effect to be settled would only be parked again, and stays as it is.
    """
    async with looked_into(options) as app:
        return await _each(
            options.run_ids,
            lambda run_id: _resume(app, run_id, screen.place, anyway=options.anyway),
            screen,
        )


async def _each(
    run_ids: Sequence[str], change: Callable[[str], Awaitable[Changed]], screen: Screen
) -> Exit:
    """Change every run, whatever becomes of the others; return the first code that is not OK."""
    run_ids = [*dict.fromkeys(run_ids)]
    if len(run_ids) == 1:
        changed = await change(run_ids[0])
        screen.document(changed.document)
        screen.line("\n".join(changed.lines))
        return changed.code
    codes, documents = list[Exit](), list[dict[str, Any]]()
    for run_id in run_ids:
        try:
            changed = await change(run_id)
        except PerdureError as error:
            code = exit_of(error)
            documents.append({"run_id": run_id, "error": screen.object_to(error, code)})
        else:
            code = changed.code
            documents.append(changed.document)
            screen.line("\n".join(changed.lines))
        codes.append(code)
    screen.document({"runs": documents})
    left = [run_id for run_id, code in zip(run_ids, codes, strict=True) if code is not Exit.OK]
    if left:
        screen.note(f"{len(left)} of {len(run_ids)} were left as they were: {', '.join(left)}")
    return next((code for code in codes if code is not Exit.OK), Exit.OK)


async def _cancel(app: App, run_id: str) -> Changed:
    before = await app.find(run_id)
    await app.handle(run_id).cancel()
    row = await app.find(run_id)
    match row.state:
        case RunState.CANCELLED if not before.state.ended:
            return _changed(row, "is cancelled")
        case RunState.RUNNING | RunState.CANCELLING:
            asked = "its worker has been asked to cancel it"
            if before.state is RunState.CANCELLING:
                asked = "its worker was asked to cancel it before"
            return _changed(row, f"is {row.state.value}; {asked}")
        case _:
            return _changed(row, f"is {row.state} already; nothing was done", Exit.NOT_WELL)


async def _resume(app: App, run_id: str, place: str, *, anyway: bool) -> Changed:
    before = await app.find(run_id)
    awaited = unsettled(before, await read_receipts(app, run_id))
    row = before
    if awaited and not anyway:
        return _awaiting(row, awaited, place)
    if before.state in _RESUMABLE and before.tombstone is None:
        row = await app.resume(run_id)
    if row != before and awaited:
        again = "parked again if nobody knows of its effect by then"
        way = settling(awaited, place)
        return _changed(row, f"is {row.state}, and {again}: it waits for {way}")
    if row != before:
        return _changed(row, f"is {row.state} and goes on when a worker serves it")
    if row.state in PARKED:
        return await _waiting(app, row, place)
    erased = "" if row.tombstone is None else ", was erased"
    why = {
        RunState.RUNNING: "is running already",
        RunState.PENDING: "waits for a worker already",
        RunState.CANCELLING: "is being cancelled by its worker",
    }.get(row.state, f"is {row.state}{erased} and never goes on")
    return _changed(row, f"{why}; nothing was done", Exit.NOT_WELL)


def _changed(row: RunRow, what: str, code: Exit = Exit.OK) -> Changed:
    return Changed(describe(row), [f"run {row.run_id} {what}"], code)


async def _waiting(app: App, row: RunRow, place: str) -> Changed:
    """Return what ends the wait of a run that is not resumed, because it goes on by itself."""
    waiting = await read_waiting(app, row)
    ways = endings(row.run_id, waiting, place)
    then = "to end its wait, type one of these" if ways else "it goes on by itself then"
    lines = [f"run {row.run_id} is {row.state.value}{standing(row, waiting)}; nothing was done"]
    lines += [then, *(f"  {way}" for way in ways)]
    commands = [way.partition("  # ")[0] for way in ways]
    return Changed({**describe(row), "commands": commands}, lines, Exit.NOT_WELL)


def _awaiting(row: RunRow, awaited: Sequence[Receipt], place: str) -> Changed:
    """Return how to settle the effects that a run waits for."""
    typed = [command for receipt in awaited for command in commands(receipt, place)]
    why = "nobody knows whether an effect of it was applied; nothing was done"
    lines = [f"run {row.run_id} stays {row.state.value}: {why}"]
    for receipt in awaited:
        asked = asked_of(receipt)
        by_itself = f", which is {asked} anyway" if asked else ""
        lines.append(f"look at {receipt.target!r}{by_itself}, and type one of these")
        lines += told(receipt, place)
    again = f"perdure resume {row.run_id}{place} --anyway"
    lines.append(f"`{again}` executes it all the same, for code that takes another turn now")
    return Changed({**describe(row), "commands": typed}, lines, Exit.NOT_WELL)
