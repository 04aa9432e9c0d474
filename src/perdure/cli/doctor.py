from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.place import placed
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet, plain
from perdure.cli.target import looked_into, receipts_of
from perdure.cli.words import STYLES, abridged, instant, moment, number_of, size
from perdure.effects.receipt import Receipt
from perdure.engine.store import RunRow, RunState, StoreReport, WorkerRow
from perdure.errors import EffectAmbiguous

_READS: Final = "`perdure check MODULE:APP` reads what the runs hold"
_RUNS_LISTED: Final = 100
_RECEIPTS_COUNTED: Final = 1000
_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("pid", number=True),
    Column("host", dispensable=1),
    Column("lease"),
    Column("runs", number=True),
    Column("since (UTC)", dispensable=2),
)


class Finding(msgspec.Struct, frozen=True):
    """Something that a person has to do, or may want to; the message says what."""

    code: str
    message: str
    run_id: str | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """All that doctor looks at.

    `target` is the App and `place` the options that name the database in commands, as they were
    typed. `unserved` are waiting runs that no function of the App serves, or None when only a URL
    was given, which tells nothing of functions. `ambiguous` are effects of which nobody knows,
    `locked` so many values of each class that the keyring cannot read, and `blobs_missing` tells
    whether there are values in a blob store that was not given.
    """

    url: str
    target: str | None
    place: str
    report: StoreReport
    counts: Mapping[RunState, int]
    workers: Sequence[WorkerRow]
    stuck: Sequence[RunRow]
    unserved: Sequence[RunRow] | None
    ambiguous: Sequence[Receipt]
    locked: Mapping[str, int]
    blobs_missing: bool

    @property
    def notes(self) -> list[Finding]:
        """What a person may want to know; nobody has to do anything about it."""
        return [*_notes(self)]

    @property
    def findings(self) -> list[Finding]:
        """What a person has to do, worst first."""
        return [*_findings(self)]


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
        await _ambiguous(app),
        await _locked(app) if legible else {},
        legible and app.blobs is None and await store.holds_blobs(),
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
        return await store.list(ambiguous_only=True, limit=_RECEIPTS_COUNTED)


def _findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    for fault in diagnosis.report.faults:
        yield Finding(fault.code, fault.message)
    if diagnosis.locked:
        counts = ", ".join(f"{count} {name}" for name, count in diagnosis.locked.items())
        yield Finding(
            "locked",
            f"{counts} hold what is not encrypted with the one key that was given, and cannot be"
            " read: add the keys that it was encrypted with to the keyring, and"
            f" `perdure reencrypt{diagnosis.place}`",
        )
    for row in diagnosis.stuck:
        yield _of_parked(row, diagnosis.place)
    for row in diagnosis.unserved or ():
        yield Finding(
            "unserved",
            f"run {row.run_id} waits for {row.function}@{row.version}, which this App does not"
            f" register: deploy it again, or end the run with `perdure cancel"
            f" {row.run_id}{diagnosis.place}`",
            row.run_id,
        )
    if diagnosis.ambiguous:
        yield _of_effects(diagnosis.ambiguous, diagnosis.place)
    yield from _of_workers(diagnosis)


def _notes(diagnosis: Diagnosis) -> Iterator[Finding]:
    failed, place = diagnosis.counts[RunState.FAILED], diagnosis.place
    if failed:
        verb = "has" if failed == 1 else "have"
        yield Finding(
            "failed",
            f"{number_of(failed, 'run')} {verb} failed: `perdure runs --state failed{place}` lists"
            f" them, `perdure resume RUN{place}` lets one go on once its cause is mended",
        )
    if diagnosis.blobs_missing:
        yield Finding(
            "blobs",
            "large values stand in a blob store that was not given, and runs that need them cannot"
            " be read without it: name the App that has it with --app MODULE:APP",
        )


def _of_parked(row: RunRow, place: str) -> Finding:
    why = "" if row.problem is None else f": {placed(row.problem.message, place)}"
    if row.unreadable is not None:
        why = f": {row.unreadable}"
    mended = f"`perdure resume {row.run_id}{place}` once that is mended, "
    if row.problem is not None and row.problem.code == EffectAmbiguous.__name__:
        mended = ""  # it goes on by itself once the effect is settled
    return Finding(
        "needs_attention",
        f"run {row.run_id} of {row.function}@{row.version} is parked{why} ({mended}`perdure cancel"
        f" {row.run_id}{place}` to end it)",
        row.run_id,
    )


def _of_effects(ambiguous: Sequence[Receipt], place: str) -> Finding:
    count = len(ambiguous)
    counted = f"{count} or more" if count == _RECEIPTS_COUNTED else str(count)
    effects, them = ("effect was", "it") if count == 1 else ("effects were", "the newest")
    return Finding(
        "ambiguous",
        f"nobody knows whether {counted} {effects} applied: list what is open with `perdure"
        f" effects{place}`, look at {them} with `perdure effects show"
        f" {ambiguous[0].operation_key}{place}`",
    )


def _of_workers(diagnosis: Diagnosis) -> Iterator[Finding]:
    if any(worker.alive for worker in diagnosis.workers):
        return  # it takes over what others left, and what waits
    waiting = diagnosis.counts[RunState.PENDING] + diagnosis.counts[RunState.RUNNING]
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield Finding(
            "no_worker",
            f"{number_of(waiting, 'run')} {verb} and no worker is alive: start one with"
            f" `perdure worker {diagnosis.target or 'MODULE:APP'}`",
        )


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
