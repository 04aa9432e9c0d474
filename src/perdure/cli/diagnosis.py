from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from perdure.cli.place import placed
from perdure.cli.words import duration, number_of
from perdure.effects.receipt import Receipt
from perdure.engine.health import StoreReport
from perdure.engine.store import RunRow, RunState
from perdure.engine.workers import WorkerRow
from perdure.errors import EffectAmbiguous

RECEIPTS_COUNTED: Final = 1000
"""How many ambiguous receipts are counted; there may be more."""

APPROVALS_COUNTED: Final = 1000
"""How many items that wait for an answer are counted; there may be more."""

_LATE_SECONDS: Final = 60.0


class Finding(msgspec.Struct, frozen=True):
    """Something that a person has to do, or may want to; the message says what."""

    code: str
    message: str
    run_id: str | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """All that doctor looks at.

    `target` is the App and `place` the options that name the database in commands, as they were
    typed. `unserved` are waiting runs that no function of the App serves, or None when only a URL
    was given, which tells nothing of functions. `waiting` are those that are put away until a time
    or until something comes, and `read_at` when that was read, in wall seconds of the store.
    `approvals` is how many answers are waited for, or None where that cannot be read. `ambiguous`
    are effects of which nobody knows, `locked` so many values of each class that the keyring cannot
    read. `blobs_missing` tells whether there are values in a blob store that was not given, and
    `blobs` what is wrong with one that was, or nothing.
    """

    url: str
    target: str | None
    place: str
    report: StoreReport
    counts: Mapping[RunState, int]
    workers: Sequence[WorkerRow]
    stuck: Sequence[RunRow]
    unserved: Sequence[RunRow] | None
    waiting: Sequence[RunRow]
    served: Sequence[tuple[str, int]]
    approvals: int | None
    read_at: float
    ambiguous: Sequence[Receipt]
    locked: Mapping[str, int]
    blobs_missing: bool
    blobs: str

    @property
    def late(self) -> list[RunRow]:
        """The runs that were to go on by themselves before now, the first of them first."""
        late = [row for row in self.waiting if row.wake_at and row.wake_at <= self.read_at]
        return sorted(late, key=lambda row: row.wake_at or 0.0)

    @property
    def notes(self) -> list[Finding]:
        """What a person may want to know; nobody has to do anything about it."""
        return [*_notes(self)]

    @property
    def findings(self) -> list[Finding]:
        """What a person has to do, worst first."""
        return [*_findings(self)]


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
    if diagnosis.blobs:
        yield Finding("blobs", diagnosis.blobs)
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
    if diagnosis.unserved is not None:
        yield from _of_waiting(diagnosis)
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
    if diagnosis.approvals:
        count = f"{APPROVALS_COUNTED} or more" if diagnosis.approvals == APPROVALS_COUNTED else ""
        yield Finding(
            "approvals",
            f"{count or number_of(diagnosis.approvals, 'item')} wait{_s(diagnosis.approvals)} for"
            f" an answer: `perdure approvals{place}` lists what runs ask for",
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


def _of_waiting(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yield a finding for each function that waiting runs will need and that is not registered."""
    counts = Counter((row.function, row.version) for row in diagnosis.waiting)
    for (name, version), count in sorted(counts.items()):
        if (name, version) not in diagnosis.served:
            yield Finding(
                "unserved",
                f"{number_of(count, 'run')} of {name}@{version} sleep{_s(count)} or wait{_s(count)}"
                " for what comes from outside, and this App does not register that: deploy it again"
                " before then, or end them; `perdure runs --state suspended"
                f"{diagnosis.place}` and `--state sleeping` list them",
            )


def _s(count: int) -> str:
    return "s" if count == 1 else ""


def _of_effects(ambiguous: Sequence[Receipt], place: str) -> Finding:
    count = len(ambiguous)
    counted = f"{count} or more" if count == RECEIPTS_COUNTED else str(count)
    effects, them = ("effect was", "it") if count == 1 else ("effects were", "the newest")
    return Finding(
        "ambiguous",
        f"nobody knows whether {counted} {effects} applied: list what is open with `perdure"
        f" effects{place}`, look at {them} with `perdure effects show"
        f" {ambiguous[0].operation_key}{place}`",
    )


def _of_workers(diagnosis: Diagnosis) -> Iterator[Finding]:
    late = diagnosis.late
    if any(worker.alive for worker in diagnosis.workers):
        # It takes over what others left, what waits, and what was to go on by itself.
        yield from _of_late(late, diagnosis)
        return
    states = RunState.PENDING, RunState.RUNNING, RunState.CANCELLING
    waiting = sum(diagnosis.counts[state] for state in states) + len(late)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield Finding(
            "no_worker",
            f"{number_of(waiting, 'run')} {verb} and no worker is alive: start one with"
            f" `perdure worker {diagnosis.target or 'MODULE:APP'}`",
        )


def _of_late(late: Sequence[RunRow], diagnosis: Diagnosis) -> Iterator[Finding]:
    seconds = diagnosis.read_at - (late[0].wake_at or 0.0) if late else 0.0
    if seconds > _LATE_SECONDS:
        were = "was to go on by itself" if len(late) == 1 else "were to go on by themselves"
        yield Finding(
            "late",
            f"{number_of(len(late), 'run')} {were}, {late[0].run_id} {duration(seconds)} ago: the"
            " workers do not keep up, or their clocks are behind; see what they log, start more",
            late[0].run_id,
        )
