from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perdure.cli.parser import KILL_POINTS
from perdure.cli.person import typed
from perdure.cli.receipt import receipts_sheet
from perdure.cli.sheet import Column, Sheet, plain
from perdure.cli.timeline import Timeline, attempts_sheet, operations_sheet
from perdure.cli.timeline import document as document_of
from perdure.cli.words import number_of

if TYPE_CHECKING:
    from perdure.demo.plan import Plan
    from perdure.demo.verdict import Verdict

_HIDDEN: Final = "event_delivery"
_SETTLED: Final = {
    "lookup": "The refund was in doubt: the shop was asked and had it, and nothing was sent again.",
    "repeat": "The refund was in doubt: it was sent again under its key, and the shop paid once.",
    "person": "The refund was in doubt, and nobody could be asked: the run waited for a person.",
    None: "Only what the kill cut short was done again.",
}


class Finale(msgspec.Struct, frozen=True):
    """How a demo ended: what was to happen, what was counted, and what the store holds.

    `kept` is the folder, if it is left; `commands` are those that settle what is in doubt.
    """

    plan: Plan
    verdict: Verdict
    timeline: Timeline
    seconds: float
    kept: Path | None
    commands: Sequence[str]


def document(finale: Finale) -> dict[str, Any]:
    """Return the end of a demo as a JSON document shows it."""
    plan, verdict = finale.plan, finale.verdict
    killed = verdict.killed
    return {
        "well": not verdict.faults,
        "faults": verdict.faults,
        "kill_at": plan.kill_at,
        "support": plan.support.value,
        "settled_by": verdict.settled_by,
        "model": plan.model or "scripted",
        "killed_pid": None if killed is None else killed.pid,
        "killed_signal": None if killed is None else -killed.report.number,
        "counts": verdict.counts,
        "replayed": verdict.replayed,
        "answer": verdict.answer,
        "seconds": round(finale.seconds, 3),
        "folder": None if finale.kept is None else str(finale.kept),
        "commands": finale.commands,
        **document_of(finale.timeline, ""),
    }


def sections(finale: Finale) -> Iterator[Any]:
    """Yield all that is shown of the end of a demo."""
    from rich.text import Text

    verdict, timeline = finale.verdict, finale.timeline
    hidden = sum(operation.kind == _HIDDEN for operation in timeline.operations)
    yield ""
    yield attempts_sheet(timeline)
    yield ""
    yield operations_sheet(timeline, without=[_HIDDEN])
    yield Text(f"({hidden} deliveries of events to the handler are not shown)", "dim")
    yield ""
    if timeline.receipts:
        yield receipts_sheet(timeline.receipts, "receipts")
        yield ""
    yield _counts(verdict)
    yield ""
    if verdict.answer is not None:
        yield Text.assemble(("answer  ", "bold"), plain(verdict.answer))
    for fault in verdict.faults:
        yield Text.assemble(("wrong   ", "bold red"), plain(fault))
    if not verdict.faults:
        yield Text(_moral(finale), "bold green")
    if verdict.killed is not None and not finale.commands:
        yield Text(_SETTLED[verdict.settled_by], "green")
    yield from _what_is_left(finale)


def _what_is_left(finale: Finale) -> Iterator[Any]:
    from rich.text import Text

    kept = finale.kept
    if finale.commands:
        yield Text("\nNow you are the person. Look, settle it, and let the turn go on:", "bold")
        yield from (f"  {plain(command)}" for command in finale.commands)
    elif kept is not None:
        words = ["show", finale.timeline.row.run_id, "--url", f"sqlite:///{kept}/runs.db"]
        yield f"all of it is in {kept}; look with:\n  {plain(typed(words))}"


def _counts(verdict: Verdict) -> Sheet:
    from rich.text import Text

    workers = len(verdict.counts[0].by_worker) if verdict.counts else 0
    columns = [
        Column("what really happened outside"),
        *(Column(f"worker {number}", number=True) for number in range(1, workers + 1)),
        Column("in all", number=True),
        Column("expected", number=True),
    ]
    rows = (
        (
            count.what,
            *(Text(str(times), "" if times else "dim") for times in count.by_worker),
            Text(str(count.counted), "green" if count.counted == count.expected else "bold red"),
            count.expected,
        )
        for count in verdict.counts
    )
    return Sheet("counts", columns, rows)


def _moral(finale: Finale) -> str:
    verdict, took = finale.verdict, f"({finale.seconds:.1f} s)"
    if finale.commands:
        return f"All counts are right so far, and nothing is guessed: the run waits {took}."
    if verdict.killed is None:
        return f"All counts are right: nobody was killed, each thing happened once {took}."
    return (
        f"All counts are right. Killed {KILL_POINTS[finale.plan.kill_at]}, the turn was finished by"
        f" another process: {number_of(verdict.replayed, 'operation')} came from the journal"
        f" {took}."
    )
