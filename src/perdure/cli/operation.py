from __future__ import annotations

from typing import Any

import msgspec

from perdure.app import App
from perdure.cli.naming import name_of, told_by_input
from perdure.cli.screen import Screen
from perdure.cli.sheet import plain
from perdure.cli.words import duration, instant, moment, size
from perdure.codec.readable import readable
from perdure.engine.history import OperationRow
from perdure.errors import (
    CommandError,
    InputDigestMismatch,
    KeyUnavailable,
    StorageCorrupt,
    StorageMissing,
)
from perdure.journal.store import Failure, Outcome, Success, Suspended, unpack_outcome


class Problem(msgspec.Struct, frozen=True):
    """Why an operation failed."""

    code: str
    type_name: str
    message: str


async def read_outcome(app: App, run_id: str, row: OperationRow) -> Outcome:
    """Return what an operation came to."""
    payload = await app.store.read_payload(run_id, row.step_id, row.sequence)
    return unpack_outcome(row.status, payload)


async def read_problem(app: App, run_id: str, row: OperationRow) -> Problem | None:
    """Return why an operation failed, or None when it did not."""
    if row.status != "failure":
        return None
    outcome = await read_outcome(app, run_id, row)
    assert isinstance(outcome, Failure)
    return _problem(outcome)


async def read_name(app: App, run_id: str, row: OperationRow) -> str:
    """Return what people call an operation."""
    if not told_by_input(row.handler_id):
        return name_of(row)
    try:
        return name_of(row, await app.store.read_input(run_id, row.step_id, row.sequence))
    except (InputDigestMismatch, KeyUnavailable, StorageCorrupt, StorageMissing):
        return name_of(row)


def describe_operation(
    run_id: str, row: OperationRow, name: str, problem: Problem | None
) -> dict[str, Any]:
    """Return an operation as a JSON document shows it; `name` is what people call it."""
    return {
        "key": f"{run_id}/{row.step_id}/{row.sequence}",
        "step_id": row.step_id,
        "sequence": row.sequence,
        "name": name,
        "kind": row.kind,
        "handler_id": row.handler_id,
        "status": row.status,
        "problem": problem,
        "tries": row.attempt,
        "recorded_in": row.generation,
        "input_sha256": row.input_sha256.hex(),
        "input_bytes": row.input_bytes,
        "output_bytes": row.payload_bytes,
        "started_at": instant(row.started_at),
        "finished_at": instant(row.finished_at),
    }


async def show_operation(app: App, run_id: str, place: str, screen: Screen) -> None:
    """Write one operation whole: what went in and what came of it."""
    row = await _find(app, run_id, place)
    input_json = await app.store.read_input(run_id, row.step_id, row.sequence)
    outcome = await read_outcome(app, run_id, row)
    problem = _problem(outcome) if isinstance(outcome, Failure) else None
    screen.document(
        {
            **describe_operation(run_id, row, name_of(row, input_json), problem),
            "input": msgspec.Raw(input_json),
            "output": msgspec.Raw(outcome.output_json) if isinstance(outcome, Success) else None,
            "failure": _failure(outcome) if isinstance(outcome, Failure) else None,
            "suspension": _suspension(outcome) if isinstance(outcome, Suspended) else None,
        }
    )
    screen.line(_facts(run_id, row, name_of(row, input_json)))
    screen.line(f"\ninput\n{_pretty(input_json)}\n")
    match outcome:
        case Success(output_json=output_json):
            screen.line(f"output\n{_pretty(output_json)}")
        case Failure():
            screen.line(f"failure\n{_pretty(msgspec.json.encode(_failure(outcome)))}")
        case Suspended():
            screen.line(f"suspension\n{_pretty(msgspec.json.encode(_suspension(outcome)))}")


async def _find(app: App, run_id: str, place: str) -> OperationRow:
    step_id, _, sequence = place.removeprefix(f"{run_id}/").rpartition("/")
    await app.store.read_run_input(run_id)  # raises `UnknownRun` and `RunErased`
    for row in await app.store.list_operations(run_id):
        if (row.step_id, str(row.sequence)) == (step_id, sequence):
            return row
    raise CommandError(
        f"run {run_id} has recorded no operation {place!r}; it is STEP/SEQUENCE, as the first"
        f" column of `perdure show {run_id}` has it"
    )


def _problem(failure: Failure) -> Problem:
    return Problem(failure.error_name, failure.type_name or failure.error_name, failure.message)


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(_problem(failure)),
        "retryable": failure.retryable,
        "data": None if failure.data_json is None else msgspec.Raw(failure.data_json),
    }


def _suspension(suspended: Suspended) -> dict[str, Any]:
    return {"reason": suspended.reason, "state": msgspec.Raw(suspended.state_json)}


def _facts(run_id: str, row: OperationRow, name: str) -> str:
    facts = {
        "what": plain(name),
        "kind": row.kind,
        "handler": row.handler_id,
        "outcome": row.status,
        "tries": str(row.attempt),
        "attempt": str(row.generation),
        "started": moment(row.started_at),
        "took": duration(row.finished_at - row.started_at),
        "input": f"{size(row.input_bytes)}, SHA-256 {row.input_sha256.hex()}",
        "output": size(row.payload_bytes),
    }
    lines = [f"operation {run_id}/{row.step_id}/{row.sequence}"]
    return "\n".join([*lines, *(f"  {name:<10}{value}" for name, value in facts.items())])


def _pretty(document: bytes) -> str:
    return msgspec.json.format(readable(document), indent=2).decode()
