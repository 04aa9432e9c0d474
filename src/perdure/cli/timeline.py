from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.cli.advice import way_on
from perdure.cli.approval import approvals_sheet, describe_approval
from perdure.cli.inbox import describe_message, inbox_sheet
from perdure.cli.naming import name_of
from perdure.cli.operation import Problem, describe_operation, read_name, read_problem
from perdure.cli.receipt import describe_receipt, read_receipts, receipts_sheet
from perdure.cli.runs import describe, problem_of, runs_sheet, state_of, took
from perdure.cli.sheet import Column, Sheet, plain, plain_lines
from perdure.cli.waiting import (
    Waiting,
    describe_wait,
    endings,
    read_waiting,
    standing,
    waits_sheet,
)
from perdure.cli.words import SHA256_SHOWN, duration, instant, moment, shortened, size
from perdure.codec.readable import readable
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import RunRow, RunState

_VALUE_CHARACTERS: Final = 400
_CHILDREN_SHOWN: Final = 100
_UNCOUNTED: Final = {None, "lost", "released", "locked"}
_ENDINGS: Final = {"completed": "green", "lost": "red", "failed": "red"}
_STATUSES: Final = {"failure": "red", "suspended": "yellow"}
_ATTEMPT_COLUMNS: Final = (
    Column("attempt", number=True),
    Column("worker", least=8),
    Column("pid", number=True, dispensable=3),
    Column("claimed", number=True, dispensable=1),
    Column("ended", number=True, dispensable=2),
    Column("how"),
    Column("recorded", number=True),
    Column("replayed", number=True),
)
_OPERATION_COLUMNS: Final = (
    Column("operation", least=16),
    Column("what", least=20),
    Column("outcome"),
    Column("at", number=True, dispensable=2),
    Column("took", number=True, dispensable=1),
    Column("attempt", number=True),
    Column("tries", number=True, dispensable=4, spare=True),
    Column("kind", dispensable=3, spare=True),
    Column("in", number=True, dispensable=5, spare=True),
    Column("out", number=True, dispensable=5, spare=True),
    Column("digest of in", dispensable=6, spare=True),
    Column("handler", dispensable=7, spare=True),
    Column("problem", least=40, below=True),
)


class Timeline(msgspec.Struct, frozen=True):
    """A run with its attempts and its operations, in the order in which they started.

    `problems` say why operations failed. `gone` are the attempts whose worker died or went silent
    and that nobody has taken over yet. `receipts` are those of its effects, oldest first. `names`
    are what people call its operations, where only their input tells, and `children` the runs that
    it started. Of an erased run, `input_json` is None, and there is nothing but attempts and
    children.
    """

    row: RunRow
    input_json: bytes | None
    attempts: Sequence[AttemptRow]
    operations: Sequence[OperationRow]
    problems: Mapping[tuple[str, int], Problem]
    gone: frozenset[int]
    receipts: Sequence[Receipt] = ()
    waiting: Waiting = Waiting()
    names: Mapping[tuple[str, int], str] = {}
    children: Sequence[RunRow] = ()

    def recorded(self, generation: int) -> int:
        """Return how many operations an attempt recorded."""
        return sum(operation.generation == generation for operation in self.operations)

    def replayed(self, attempt: AttemptRow) -> int | None:
        """Return how many operations an attempt took from the journal.

        None when nobody wrote it down, because the attempt goes on or ended with its process.
        """
        return None if attempt.ending in _UNCOUNTED else attempt.replayed

    def problem(self, operation: OperationRow) -> Problem | None:
        """Return why an operation failed, or None when it did not."""
        return self.problems.get((operation.step_id, operation.sequence))

    def name(self, operation: OperationRow) -> str:
        """Return what people call an operation."""
        return self.names.get((operation.step_id, operation.sequence)) or name_of(operation)


async def read_timeline(app: App, run_id: str) -> Timeline:
    """Read a run and all that it recorded; raises `UnknownRun`."""
    row = await app.find(run_id)
    erased = row.tombstone is not None
    operations: Sequence[OperationRow] = ()
    if not erased:
        operations = await app.store.list_operations(run_id)
    problems = {
        (operation.step_id, operation.sequence): problem
        for operation in operations
        if (problem := await read_problem(app, run_id, operation)) is not None
    }
    names = {
        (operation.step_id, operation.sequence): await read_name(app, run_id, operation)
        for operation in operations
    }
    gone = await _gone(app, run_id)
    attempts = await app.store.list_attempts(run_id)
    return Timeline(
        row,
        None if erased else await app.store.read_run_input(run_id),
        attempts,
        sorted(operations, key=lambda operation: operation.started_at),
        problems,
        frozenset(
            attempt.generation
            for attempt in attempts
            if attempt.ending is None and attempt.generation in gone
        ),
        () if erased else await read_receipts(app, run_id),
        await read_waiting(app, row),
        names,
        await app.store.list_children(run_id, limit=_CHILDREN_SHOWN),
    )


async def _gone(app: App, run_id: str) -> set[int]:
    # The attempts are read before the workers, whom their claims then precede, and are read again
    # by the caller: a worker that retires in between ends its attempts.
    attempts = await app.store.list_attempts(run_id)
    alive = {worker.holder for worker in await app.store.list_workers() if worker.alive}
    return {attempt.generation for attempt in attempts if attempt.holder not in alive}


# --- for programs --------------------------------------------------------------------------------


def document(timeline: Timeline, place: str) -> dict[str, Any]:
    """Return a timeline as a JSON document shows it; `place` names the database in commands."""
    run_id, waiting = timeline.row.run_id, timeline.waiting
    return {
        "run": {**describe(timeline.row), "input": _input(timeline)},
        "attempts": [_attempt(timeline, attempt) for attempt in timeline.attempts],
        "operations": [
            describe_operation(
                run_id, operation, timeline.name(operation), timeline.problem(operation)
            )
            for operation in timeline.operations
        ],
        "receipts": [describe_receipt(receipt) for receipt in timeline.receipts],
        "waits": [describe_wait(run_id, each) for each in waiting.waits],
        "approvals": [describe_approval(approval, place) for approval in waiting.approvals],
        "messages": [describe_message(message) for message in waiting.messages],
        "children": [describe(child) for child in timeline.children],
    }


def _input(timeline: Timeline) -> msgspec.Raw | None:
    return None if timeline.input_json is None else msgspec.Raw(timeline.input_json)


def _attempt(timeline: Timeline, attempt: AttemptRow) -> dict[str, Any]:
    alive = attempt.generation not in timeline.gone
    return {
        "attempt": attempt.generation,
        "worker": attempt.worker,
        "pid": attempt.pid,
        "holder": attempt.holder,
        "claimed_at": instant(attempt.claimed_at),
        "ended_at": instant(attempt.ended_at),
        "ending": attempt.ending,
        "worker_alive": alive if attempt.ending is None else None,
        "recorded": timeline.recorded(attempt.generation),
        "replayed": timeline.replayed(attempt),
    }


# --- for people ----------------------------------------------------------------------------------


def headline(timeline: Timeline, place: str) -> Any:
    """Return what a run is and what became of it; `place` names the database in commands."""
    from rich.text import Text

    row = timeline.row
    state = state_of(row).append(plain(standing(row, timeline.waiting)))
    text = Text.assemble("run ", (row.run_id, "bold"), "  ", state)
    problem = row.problem
    facts = {
        "function": f"{row.function}@{row.version}",
        "created": moment(row.created_at),
        "took": duration(took(row)),
        "deadline": moment(row.deadline_at),
        "started by": "" if row.parent is None else f"run {row.parent}",
        "input": _value(timeline.input_json),
        "result": _value(row.output_json),
        "problem": problem_of(row, place),
        "waits": _what_is_awaited(timeline),
        "erased": _erasure(row, place),
        "goes on by": way_on(row, timeline.receipts, place),
    }
    for name, value in facts.items():
        if value:
            text.append(f"\n  {name:<11}", "dim").append(plain(value))
    if problem is not None and problem.traceback:
        lines = plain_lines(problem.traceback.rstrip()).replace("\n", "\n  ")
        text.append(f"\n\n  {lines}", "dim")
    return text


def _erasure(row: RunRow, place: str) -> str:
    gone = row.tombstone
    if gone is None:
        return ""
    told = f"{moment(gone.at)} by {gone.by}: {gone.why}"
    if gone.whole:
        return told
    again = f"perdure erase {row.run_id}{place} --why {shlex.quote(gone.why)}"
    return f"{told} (not to its end yet; `{again}` goes on with it)"


def _what_is_awaited(timeline: Timeline) -> str:
    row = timeline.row
    if timeline.waiting.unreadable is not None:
        return f"for what cannot be read: {timeline.waiting.unreadable}"
    served = f"a worker that serves {row.function}@{row.version}"
    if row.state.executed and row.generation in timeline.gone:
        return f"its worker is gone; {served} takes it over"
    return f"for {served}" if row.state is RunState.PENDING else ""


def attempts_sheet(timeline: Timeline) -> Sheet:
    """Return the attempts of a run: who had it, how that ended, and what it did."""
    start = timeline.row.created_at
    rows = (
        (
            attempt.generation,
            attempt.worker,
            attempt.pid or "",
            f"+{duration(max(0.0, attempt.claimed_at - start))}",
            "" if attempt.ended_at is None else f"+{duration(attempt.ended_at - start)}",
            _ending(timeline, attempt),
            timeline.recorded(attempt.generation),
            _known(timeline.replayed(attempt)),
        )
        for attempt in timeline.attempts
    )
    return Sheet("attempts", _ATTEMPT_COLUMNS, rows)


def operations_sheet(timeline: Timeline, *, without: Sequence[str] = ()) -> Sheet:
    """Return the operations of a run in the order they started, but for some kinds."""
    rows = (
        _cells(timeline, operation)
        for operation in timeline.operations
        if operation.kind not in without
    )
    return Sheet("operations", _OPERATION_COLUMNS, rows)


def _cells(timeline: Timeline, operation: OperationRow) -> tuple[object, ...]:
    from rich.text import Text

    problem = timeline.problem(operation)
    told = "" if problem is None else plain(f"{problem.type_name}: {problem.message}")
    return (
        f"{operation.step_id}/{operation.sequence}",
        timeline.name(operation),
        Text(operation.status, _STATUSES.get(operation.status, "")),
        f"+{duration(max(0.0, operation.started_at - timeline.row.created_at))}",
        duration(operation.finished_at - operation.started_at),
        operation.generation,
        operation.attempt,
        operation.kind,
        size(operation.input_bytes),
        size(operation.payload_bytes),
        operation.input_sha256.hex()[:SHA256_SHOWN],
        operation.handler_id,
        Text(told, "red"),
    )


def effects_sheet(timeline: Timeline) -> Sheet | None:
    """Return the effects of a run that are not known to be applied once; None for none."""
    rows = [
        receipt
        for receipt in timeline.receipts
        if receipt.state is not ReceiptState.COMPLETED or receipt.residual_duplicate_risk
    ]
    return receipts_sheet(rows, "effects not known to be applied once") if rows else None


def _value(data: bytes | None) -> str:
    if data is None:
        return ""
    return shortened(readable(data).decode("utf-8", "replace"), _VALUE_CHARACTERS)


def _known(count: int | None) -> str:
    return "?" if count is None else str(count)


def _ending(timeline: Timeline, attempt: AttemptRow) -> Any:
    from rich.text import Text

    if attempt.generation in timeline.gone:
        return Text("worker gone", "red")
    ending = attempt.ending
    return Text("goes on", "blue") if ending is None else Text(ending, _ENDINGS.get(ending, ""))


def sections(timeline: Timeline, place: str) -> Iterator[Any]:
    """Yield all that `show` prints of a run; `place` names the database in commands."""
    yield headline(timeline, place)
    yield ""
    if timeline.attempts:
        yield attempts_sheet(timeline)
        yield ""
    if timeline.operations:
        yield operations_sheet(timeline)
    elif timeline.row.tombstone is None:
        yield "nothing recorded yet"
    else:
        yield "what it recorded is gone"
    yield from _what_comes_from_outside(timeline, place)
    unsettled = effects_sheet(timeline)
    if unsettled is not None:
        yield ""
        yield unsettled


def _what_comes_from_outside(timeline: Timeline, place: str) -> Iterator[Any]:
    """Yield what a run waits for, asks for and was sent, and the runs that it started."""
    waiting = timeline.waiting
    if waiting.waits:
        yield ""
        yield waits_sheet(waiting.waits)
    if waiting.open:
        yield ""
        yield approvals_sheet(waiting.open, title="open approvals", of_one_run=True)
    ways = endings(timeline.row.run_id, waiting, place)
    if ways:
        yield "\nto end a wait, type one of these"
        yield from (f"  {way}" for way in ways)
    if waiting.messages:
        yield ""
        yield inbox_sheet(waiting.messages)
    if timeline.children:
        yield ""
        yield runs_sheet(timeline.children, place, "runs that it started")
