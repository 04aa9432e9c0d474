from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.cli.exits import Exit
from perdure.cli.place import placed
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import looked_into
from perdure.cli.words import STYLES, abridged, duration, instant, moment
from perdure.engine.store import RunRow, RunState
from perdure.strict_json import MalformedError, check_document

_STATED: Final = (
    Column("run"),
    Column("function"),
    Column("state"),
)
_WAKES: Final = (Column("until (UTC)", dispensable=2),)
_TOLD: Final = (
    Column("attempts", number=True, dispensable=3),
    Column("created (UTC)", dispensable=1),
    Column("took", number=True, dispensable=4),
    Column("problem", least=40, below=True),
)


async def runs(options: argparse.Namespace, screen: Screen) -> Exit:
    """List the newest runs of a store."""
    screen.need_tables()
    state = None if options.state is None else RunState(options.state)
    async with looked_into(options) as app:
        rows = await app.store.list_runs(state=state, limit=options.limit)
    if screen.as_json:
        screen.document({"runs": [describe(row) for row in rows]})
    elif rows:
        screen.show(runs_sheet(rows, screen.place))
    else:
        screen.line("no runs" if state is None else f"no runs are {state.value}")
    return Exit.OK


def describe(row: RunRow) -> dict[str, Any]:
    """Return a run as a JSON document shows it."""
    gone = row.tombstone
    result, unreadable = _result(row)
    return {
        "run_id": row.run_id,
        "function": row.function,
        "version": row.version,
        "state": row.state,
        "cancel_requested": row.cancel_requested,
        "attempts": row.generation,
        "holder": row.holder,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "finished_at": instant(row.finished_at),
        "wake_at": instant(row.wake_at),
        "deadline_at": instant(row.deadline_at),
        "parent": row.parent,
        "queued": row.queued,
        "input_sha256": row.input_sha256.hex() or None,
        "result": result,
        "unreadable": unreadable,
        "problem": row.problem,
        "erased_at": None if gone is None else instant(gone.at),
        "erased_by": None if gone is None else gone.by,
        "erased_why": None if gone is None else gone.why,
        "erasing": gone is not None and not gone.whole,
    }


def _result(row: RunRow) -> tuple[msgspec.Raw | None, str | None]:
    """Return the result of a run, and why something of the run cannot be read."""
    unreadable = None if row.unreadable is None else str(row.unreadable)
    if row.output_json is None:
        return None, unreadable
    try:
        check_document(row.output_json)
    except MalformedError as error:
        return None, f"the output of run {row.run_id} is damaged in the database: {error}"
    return msgspec.Raw(row.output_json), unreadable


def say(screen: Screen, row: RunRow, what: str, code: Exit = Exit.OK) -> Exit:
    """Say what became of a run, and show it as it stands."""
    screen.document(describe(row))
    screen.line(f"run {row.run_id} {what}")
    return code


def runs_sheet(rows: Sequence[RunRow], place: str, title: str = "") -> Sheet:
    """Return runs as a table, in the order given; `place` names the database in commands."""
    wakes = _WAKES if any(row.wake_at is not None for row in rows) else ()
    cells = ([*_stated(row), *(_wakes(row) for _ in wakes), *_told(row, place)] for row in rows)
    return Sheet(title, (*_STATED, *wakes, *_TOLD), cells)


def state_of(row: RunRow) -> Any:
    """Return the state of a run as coloured text of rich."""
    from rich.text import Text

    asked = row.cancel_requested and not (row.state.settled or row.state is RunState.CANCELLING)
    word = f"{row.state.value}, to be cancelled" if asked else row.state.value
    if _result(row)[1] is not None:
        word += ", unreadable"
    if row.tombstone is not None:
        word += ", erased" if row.tombstone.whole else ", not yet erased whole"
    return Text(word, STYLES[row.state])


def problem_of(row: RunRow, place: str) -> str:
    """Return what ended or parked a run; `place` names the database in commands."""
    problem = row.problem
    if problem is None:
        return ""
    return placed(f"{problem.type_name}: {abridged(problem.message)}", place)


def took(row: RunRow) -> float | None:
    """Return for how many seconds a run has been going on in all, or None before or while."""
    if row.started_at is None or row.finished_at is None:
        return None
    return row.finished_at - row.started_at


def _stated(row: RunRow) -> tuple[object, ...]:
    return row.run_id, f"{row.function}@{row.version}", state_of(row)


def _wakes(row: RunRow) -> str:
    return moment(row.wake_at).removesuffix("Z")


def _told(row: RunRow, place: str) -> tuple[object, ...]:
    return (
        row.generation,
        moment(row.created_at).rpartition(":")[0],
        duration(took(row)),
        "; ".join(filter(None, (problem_of(row, place), _result(row)[1]))),
    )
