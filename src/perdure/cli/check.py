from __future__ import annotations

import argparse
from collections import Counter
from typing import Final

import msgspec

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import load_app, naming_the_database
from perdure.cli.words import number_of
from perdure.engine.rehearsal import Rehearsed, Verdict, unreadable
from perdure.engine.store import RunRow, RunState
from perdure.errors import InputDigestMismatch, KeyUnavailable, StorageCorrupt, StorageMissing

_COLUMNS: Final = (
    Column("run"),
    Column("function"),
    Column("verdict"),
    Column("replayed", number=True, dispensable=1),
    Column("reason", least=40, below=True),
)
_OPEN: Final = tuple(state for state in RunState if not state.ended)


async def check(options: argparse.Namespace, screen: Screen) -> Exit:
    """Compare stored journals with the code of an App, without performing anything."""
    screen.need_tables()
    app = load_app(options.target)
    with naming_the_database(app):
        async with app.connect(create=False):
            found = [
                await _rehearsed(app, row)
                for row in await _chosen(app, options)
                if row.tombstone is None
            ]
    _report(found, screen, everything=options.all)
    bad = [one for one in found if _is_bad(one)]
    return Exit.NOT_WELL if bad else Exit.OK


def _is_bad(one: Rehearsed) -> bool:
    """Tell whether the code would not do for a run; nobody needs to serve one that is over."""
    unserved = one.verdict in {Verdict.UNSERVED, Verdict.UNREADABLE}
    return one.verdict is Verdict.DIFFERS or (unserved and not one.ended)


async def _rehearsed(app: App, row: RunRow) -> Rehearsed:
    """Rehearse a run, unless it cannot be read."""
    try:
        return await app.rehearse(row.run_id)
    except (InputDigestMismatch, KeyUnavailable, StorageCorrupt, StorageMissing) as error:
        return unreadable(row, str(error))


async def _chosen(app: App, options: argparse.Namespace) -> list[RunRow]:
    """Return the runs that were named, or else all that may go on and the newest of the others."""
    if options.run:
        return [await app.find(run_id) for run_id in options.run]
    rows = {
        row.run_id: row
        for state in _OPEN
        for row in await app.list(state=state, limit=options.limit)
    }
    if not options.open:
        for row in await app.list(limit=options.limit):
            rows.setdefault(row.run_id, row)
    return [*rows.values()]


def _report(found: list[Rehearsed], screen: Screen, *, everything: bool) -> None:
    if screen.as_json:
        screen.document({"runs": [msgspec.to_builtins(one) for one in found]})
        return
    shown = [
        one for one in found if everything or one.verdict is Verdict.UNREADABLE or _is_bad(one)
    ]
    if shown:
        screen.show(Sheet("", _COLUMNS, map(_cells, shown)))
    counts = Counter(one.verdict for one in found)
    told = (verdict for verdict in Verdict if counts[verdict] or verdict is not Verdict.UNREADABLE)
    said = ", ".join(
        f"{counts[verdict]} {_WORDS[verdict][counts[verdict] != 1]}" for verdict in told
    )
    screen.line(f"{number_of(len(found), 'run')}: {said}")
    over = sum(_is_bad(one) and one.ended for one in found)
    if over:
        which = "1 that differs is" if over == 1 else f"{over} that differ are"
        screen.line(f"{which} over and need not go on; --open leaves out what is over")


def _cells(one: Rehearsed) -> tuple[str, ...]:
    function = f"{one.function}@{one.version}"
    replayed = f"{one.replayed} of {one.recorded}"
    return one.run_id, function, one.verdict.value, replayed, one.reason


_WORDS: Final = {
    Verdict.MATCHES: ("matches", "match"),
    Verdict.GOES_ON: ("matches and would go on", "match and would go on"),
    Verdict.DIFFERS: ("differs", "differ"),
    Verdict.UNSERVED: ("is not served", "are not served"),
    Verdict.UNREADABLE: ("cannot be read", "cannot be read"),
}
"""What is said of one run and of several."""
