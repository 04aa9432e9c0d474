from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.cli.runs import describe, state_of, took
from perdure.cli.sheet import Column, Sheet, plain
from perdure.cli.words import duration, instant, moment, shortened, size
from perdure.engine.store import AttemptRow, OperationRow, RunRow

_DIGEST_CHARACTERS: Final = 8
_VALUE_CHARACTERS: Final = 400
_UNCOUNTED: Final = {None, "lost", "released"}
_ATTEMPT_COLUMNS: Final = (
    Column("attempt", number=True),
    Column("worker"),
    Column("pid", number=True, dispensable=1),
    Column("claimed", number=True),
    Column("ended", number=True),
    Column("how"),
    Column("recorded", number=True),
    Column("replayed", number=True),
)
_OPERATION_COLUMNS: Final = (
    Column("operation"),
    Column("kind", dispensable=4),
    Column("handler", dispensable=6),
    Column("outcome", dispensable=1),
    Column("tries", number=True, dispensable=3),
    Column("in", number=True, dispensable=5),
    Column("out", number=True, dispensable=5),
    Column("digest of in", dispensable=7),
    Column("at", number=True),
    Column("took", number=True, dispensable=2),
    Column("executed in", number=True),
    Column("replayed in", number=True),
)


class Timeline(msgspec.Struct, frozen=True):
    """A run with its attempts and the operations it recorded, in that order."""

    row: RunRow
    input_json: bytes
    attempts: Sequence[AttemptRow]
    operations: Sequence[OperationRow]

    def recorded(self, generation: int) -> int:
        """Return how many operations an attempt recorded."""
        return sum(operation.generation == generation for operation in self.operations)

    def replayed(self, attempt: AttemptRow) -> int | None:
        """Return how many operations an attempt took from the journal.

        None when nobody wrote it down, because the attempt goes on or ended with its process.
        """
        return None if attempt.ending in _UNCOUNTED else attempt.replayed

    def replayers(self, operation: OperationRow) -> list[int]:
        """Return the attempts that took an operation from the journal.

        That is deduced: they came after it, and got on to record operations or to end the run.
        """
        return [
            attempt.generation
            for attempt in self.attempts
            if attempt.generation > operation.generation
            and (self.replayed(attempt) or self.recorded(attempt.generation))
        ]


async def read_timeline(app: App, run_id: str) -> Timeline:
    """Read a run and all that it recorded; raises `UnknownRun`."""
    return Timeline(
        await app.find(run_id),
        await app.store.read_run_input(run_id),
        await app.store.list_attempts(run_id),
        await app.store.list_operations(run_id),
    )


# --- for programs --------------------------------------------------------------------------------


def document(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as a JSON document shows it."""
    return {
        "run": {**describe(timeline.row), "input": msgspec.Raw(timeline.input_json)},
        "attempts": [_attempt(timeline, attempt) for attempt in timeline.attempts],
        "operations": [_operation(timeline, operation) for operation in timeline.operations],
    }


def _attempt(timeline: Timeline, attempt: AttemptRow) -> dict[str, Any]:
    return {
        "attempt": attempt.generation,
        "worker": attempt.worker,
        "pid": attempt.pid,
        "holder": attempt.holder,
        "claimed_at": instant(attempt.claimed_at),
        "ended_at": instant(attempt.ended_at),
        "ending": attempt.ending,
        "recorded": timeline.recorded(attempt.generation),
        "replayed": timeline.replayed(attempt),
    }


def _operation(timeline: Timeline, operation: OperationRow) -> dict[str, Any]:
    return {
        "key": f"{timeline.row.run_id}/{operation.step_id}/{operation.sequence}",
        "step_id": operation.step_id,
        "sequence": operation.sequence,
        "kind": operation.kind,
        "handler_id": operation.handler_id,
        "status": operation.status,
        "tries": operation.attempt,
        "executed_in": operation.generation,
        "replayed_in": timeline.replayers(operation),
        "input_sha256": operation.input_sha256.hex(),
        "input_bytes": operation.input_bytes,
        "output_bytes": operation.payload_bytes,
        "started_at": instant(operation.started_at),
        "finished_at": instant(operation.finished_at),
    }


# --- for people ----------------------------------------------------------------------------------


def headline(timeline: Timeline) -> Any:
    """Return what a run is and what became of it."""
    from rich.text import Text

    row = timeline.row
    text = Text.assemble("run ", (row.run_id, "bold"), "  ", state_of(row))
    facts = {
        "function": f"{row.function}@{row.version}",
        "created": moment(row.created_at),
        "took": duration(took(row)),
        "input": _value(timeline.input_json),
        "result": "" if row.output_json is None else _value(row.output_json),
        "problem": "" if row.problem is None else f"{row.problem.type_name}: {row.problem.message}",
    }
    for name, value in facts.items():
        if value:
            text.append(f"\n  {name:<10}", "dim").append(plain(value))
    return text


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
            _ending(attempt.ending),
            timeline.recorded(attempt.generation),
            _known(timeline.replayed(attempt)),
        )
        for attempt in timeline.attempts
    )
    return Sheet("attempts", _ATTEMPT_COLUMNS, rows)


def operations_sheet(timeline: Timeline, *, without: Sequence[str] = ()) -> Sheet:
    """Return the operations of a run in the order they were recorded, but for some kinds."""
    start = timeline.row.created_at
    rows = (
        (
            f"{operation.step_id}/{operation.sequence}",
            operation.kind,
            operation.handler_id,
            operation.status,
            operation.attempt,
            size(operation.input_bytes),
            size(operation.payload_bytes),
            operation.input_sha256.hex()[:_DIGEST_CHARACTERS],
            f"+{duration(max(0.0, operation.started_at - start))}",
            duration(operation.finished_at - operation.started_at),
            operation.generation,
            ", ".join(map(str, timeline.replayers(operation))),
        )
        for operation in timeline.operations
        if operation.kind not in without
    )
    return Sheet("operations", _OPERATION_COLUMNS, rows)


def _value(data: bytes) -> str:
    return shortened(data.decode("utf-8", "replace"), _VALUE_CHARACTERS)


def _known(count: int | None) -> str:
    return "?" if count is None else str(count)


def _ending(ending: str | None) -> Any:
    from rich.text import Text

    styles: Mapping[str, str] = {"completed": "green", "lost": "red", "failed": "red"}
    return Text("goes on", "blue") if ending is None else Text(ending, styles.get(ending, ""))


def sections(timeline: Timeline) -> Iterator[Any]:
    """Yield all that `show` prints of a run."""
    yield headline(timeline)
    yield ""
    yield attempts_sheet(timeline)
    yield ""
    yield operations_sheet(timeline)
