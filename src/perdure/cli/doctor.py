from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from perdure.app import App
from perdure.cli.diagnosis import APPROVALS_COUNTED, RECEIPTS_COUNTED, Diagnosis
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet, plain
from perdure.cli.target import looked_into, receipts_of
from perdure.cli.words import STYLES, abridged, instant, moment, number_of, size
from perdure.effects.receipt import Receipt
from perdure.engine.store import RunState
from perdure.engine.workers import WorkerRow
from perdure.errors import KeyUnavailable, StorageCorrupt, StorageError, StorageMissing

_READS: Final = "`perdure check MODULE:APP` reads what the runs hold"
_RUNS_LISTED: Final = 100
_WAITING_READ: Final = 10_000
_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("pid", number=True),
    Column("host", dispensable=1),
    Column("lease"),
    Column("runs", number=True),
    Column("since (UTC)", dispensable=2),
)


async def doctor(options: argparse.Namespace, screen: Screen) -> Exit:
    """Check a store, its workers and its runs; exit 1 when a person has to do something."""
    screen.need_tables()
    async with looked_into(options) as app:
        diagnosis = await _diagnose(app, options.app, screen.place)
    if screen.as_json:
        screen.document(_document(diagnosis))
    else:
        screen.show(*_sections(diagnosis))
    return Exit.NOT_WELL if diagnosis.findings else Exit.OK


async def _diagnose(app: App, target: str | None, place: str) -> Diagnosis:
    store = app.store
    state = RunState.NEEDS_ATTENTION
    report = await store.examine()
    legible = not report.faults  # a damaged file may end what reads all of it
    return Diagnosis(
        app.shown_url,
        target,
        place,
        report,
        await store.count_runs(),
        await store.list_workers(),
        await store.list_runs(state=state, limit=_RUNS_LISTED),
        await store.unserved(app.functions) if target is not None else None,
        [
            row
            for state in (RunState.SLEEPING, RunState.SUSPENDED)
            for row in await store.list_runs(state=state, limit=_WAITING_READ)
        ],
        app.functions,
        await _open_approvals(app) if legible else None,
        store.clock.now(),
        await _ambiguous(app),
        await _locked(app) if legible else {},
        legible and app.blobs is None and await store.holds_blobs(),
        await _blobs(app) if legible else "",
    )


async def _open_approvals(app: App) -> int | None:
    """Count what runs wait for an answer to; None where that cannot be read."""
    try:
        return len(await app.approvals(limit=APPROVALS_COUNTED))
    except (KeyUnavailable, StorageCorrupt, StorageMissing):
        return None


async def _blobs(app: App) -> str:
    """Say what is wrong with the blob store that was given, as far as some blobs tell."""
    try:
        found = await app.store.look_for_blobs()
    except StorageError as error:
        return str(error)
    if not found.missing:
        return ""
    return (
        f"{len(found.missing)} of {number_of(found.looked_for, 'large value')} that the database"
        f" needs cannot be found in the blob store, {found.missing[0]} for instance: see that this"
        " App names the blob store of the database, or restore it from a backup"
    )


async def _locked(app: App) -> Mapping[str, int]:
    """Count what the only key of a keyring cannot read; with several, the tables do not tell."""
    keyring = app.encryption
    if keyring is None or len(keyring.key_ids) > 1 or keyring.accept_plaintext:
        return {}
    return {name: count for name, count in (await app.store.count_stale()).items() if count}


async def _ambiguous(app: App) -> Sequence[Receipt]:
    # Last: workers that are gone are found by it, and are to be shown as they were.
    async with receipts_of(app) as store:
        return await store.list(ambiguous_only=True, limit=RECEIPTS_COUNTED)


# --- for programs --------------------------------------------------------------------------------


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    report = diagnosis.report
    return {
        "well": not diagnosis.findings,
        "findings": diagnosis.findings,
        "notes": diagnosis.notes,
        "url": diagnosis.url,
        "store": {
            "driver": report.driver,
            "schema_version": report.schema_version,
            **report.facts,
        },
        "runs": {state.value: count for state, count in diagnosis.counts.items()},
        "workers": [
            {
                "name": worker.name,
                "pid": worker.pid,
                "host": worker.host,
                "holder": worker.holder,
                "alive": worker.alive,
                "runs": worker.runs,
                "started_at": instant(worker.started_at),
            }
            for worker in diagnosis.workers
        ],
        "ambiguous": len(diagnosis.ambiguous),
        "approvals": diagnosis.approvals,
        "late": len(diagnosis.late),
        "unserved": None
        if diagnosis.unserved is None
        else [row.run_id for row in diagnosis.unserved],
    }


# --- for people ----------------------------------------------------------------------------------


def _sections(diagnosis: Diagnosis) -> Iterator[Any]:
    from rich.text import Text

    yield _facts(diagnosis)
    yield ""
    if diagnosis.workers:
        yield _workers(diagnosis.workers)
    else:
        yield "no workers"
    yield ""
    if diagnosis.unserved is None:
        yield Text("to check that every waiting run has a function, pass --app MODULE:APP", "dim")
    for note in diagnosis.notes:
        yield Text.assemble(("- ", "bold yellow"), plain(note.message))
    findings = diagnosis.findings
    if not findings:
        yield Text.assemble(
            ("all else is well" if diagnosis.notes else "all is well", "bold green"),
            ", as far as the tables tell; ",
            plain(_READS),
        )
    for finding in findings:
        yield Text.assemble(("! ", "bold red"), plain(abridged(finding.message)))


def _facts(diagnosis: Diagnosis) -> Sheet:
    from rich.text import Text

    report = diagnosis.report
    counts = Text()
    for state, count in diagnosis.counts.items():
        if count:
            counts.append(f"{'  ' if counts else ''}{count} {state.value}", STYLES[state])
    facts = {
        name.removesuffix("_bytes").replace("_", " "): size(value)
        if name.endswith("_bytes") and isinstance(value, int)
        else value
        for name, value in report.facts.items()
    }
    rows: list[tuple[str, object]] = [
        ("driver", f"{report.driver}, schema version {report.schema_version}"),
        *facts.items(),
        ("runs", counts or "none"),
    ]
    return Sheet("", (Column(""), Column("", least=20)), rows)


def _workers(workers: Sequence[WorkerRow]) -> Sheet:
    from rich.text import Text

    rows = (
        (
            worker.name,
            worker.pid,
            worker.host,
            Text("alive", "green") if worker.alive else Text("dead", "red"),
            worker.runs,
            moment(worker.started_at).removesuffix("Z"),
        )
        for worker in workers
    )
    return Sheet("workers", _WORKER_COLUMNS, rows)
