from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.effects.answer import NeverWill
from perdure.effects.receipt import Move
from perdure.engine.store import RunEnd, RunProblem, RunState
from perdure.errors import InputDigestMismatch, KeyUnavailable, StorageCorrupt
from perdure.journal import Invocation, OperationKind, Success
from perdure.receipts import ReceiptStore
from tests.encrypting import keyring, store_value, stored_value
from tests.erasing import effect
from tests.harness import RUN, Stored, app_on, run, sql, stored
from tests.storages import on_server, url_of

LARGE = b'"' + bytes(range(35, 91)) * 100 + b'"'
TALK = [b"the first part, " * 40, b"and the second, " * 40, b"and a third one " * 40]
READS: dict[str, Callable[[Stored], Awaitable[Any]]] = {
    "journal": lambda it: it.store.read_journal(RUN),
    "payload": lambda it: it.store.read_payload(RUN, "call", 1),
    "large": lambda it: it.store.read_payload(RUN, "large", 1),
    "input": lambda it: it.store.read_input(RUN, "call", 1),
    "talk": lambda it: it.store.read_input(RUN, "talk", 1),
    "operations": lambda it: it.store.list_operations(RUN),
    "run": lambda it: it.store.read_run("ended"),
    "failed": lambda it: it.store.read_run("failed"),
    "given": lambda it: it.store.read_run_input("ended"),
    "receipts": lambda it: it.store.list_receipts(ambiguous_only=False, limit=9),
}
CALL, OTHER = "step_id = 'call' AND sequence = 1", "step_id = 'call' AND sequence = 2"
ENDED, BEGUN = "run_id = 'ended'", f"run_id = '{RUN}'"
PAID, ASKED = "idempotency_key = 'paid-key'", "idempotency_key = 'asked-key'"
LOST, REFUSED = "idempotency_key = 'lost-key'", "idempotency_key = 'no-key'"
VALUES = [
    # where a value stands, where another one of its kind does, and what reads it
    ("records", "payload", CALL, OTHER, "payload"),
    ("records", "payload", CALL, OTHER, "journal"),
    ("records", "payload", "step_id = 'large'", CALL, "large"),
    ("records", "input_tail", CALL, OTHER, "input"),
    ("records", "input_sha256", CALL, OTHER, "journal"),
    ("records", "input_sha256", CALL, OTHER, "operations"),
    ("records", "input_sha256", CALL, OTHER, "input"),
    ("runs", "input", ENDED, BEGUN, "given"),
    ("runs", "input_sha256", ENDED, BEGUN, "run"),
    ("runs", "output", ENDED, "run_id = 'other'", "run"),
    ("runs", "problem", "run_id = 'failed'", "run_id = 'failed-too'", "failed"),
    ("timers", "input", "sequence = 1", "sequence = 2", "journal"),
    ("timers", "input_sha256", "sequence = 1", "sequence = 2", "journal"),
    ("receipts", "payload", PAID, ASKED, "receipts"),
    ("receipts", "arguments_sha256", PAID, ASKED, "receipts"),
    (
        "receipts",
        "problem",
        "idempotency_key = 'lost-key'",
        "idempotency_key = 'no-key'",
        "receipts",
    ),
    ("pieces", "data", "parent IS NULL", "parent IS NOT NULL", "talk"),
]
NAMES = [f"{table}.{column}-{read}" for table, column, _, _, read in VALUES]


async def _filled(it: Stored) -> None:
    """Write two values of every kind."""
    for sequence in (1, 2):
        payload = Success(b'"answer %d, which is long enough to be cut short"' % sequence)
        await it.append("call", sequence, b'"question %d"' % sequence, outcome=payload)
        delay = Invocation(
            RUN, "sleep", sequence, OperationKind.RETRY_DELAY, "h", b'{"delay_ms":9}'
        )
        await it.store.begin_timer(it.fence, delay, b"digest", 5.0 + sequence)
    await it.append("large", 1, b"1", outcome=Success(LARGE))
    cuts = (len(TALK[0]), len(TALK[0] + TALK[1]))
    await it.append("talk", 1, b"".join(TALK), cuts)
    for run_id in ("ended", "other", "failed", "failed-too"):
        fence = await it.begin(run_id)
        end = RunEnd(RunState.COMPLETED, f'"result of {run_id}"'.encode())
        if run_id.startswith("failed"):
            problem = RunProblem("Code", "Type", f"message of {run_id}")
            end = RunEnd(RunState.FAILED, problem=problem)
        await it.store.end_run(fence, end)
    await effect(it, it.fence, "paid", Move.COMPLETE, '"receipt 17"')
    await effect(it, it.fence, "asked", Move.COMPLETE, '"receipt 18"')
    await effect(it, it.fence, "lost", Move.DOUBT, "no reply")
    await effect(it, it.fence, "no", Move.REFUSE, "no money")


def _flipped(value: Any) -> Any:
    """Return a value with one bit changed near its end."""
    if isinstance(value, str):
        return value[:-6] + ("A" if value[-6] != "A" else "B") + value[-5:]
    return value[:-6] + bytes([value[-6] ^ 1]) + value[-5:]


def _plain(value: Any) -> Any:
    return "said in the open" if isinstance(value, str) else b'"said in the open, by somebody else"'


TAMPERINGS: dict[str, Callable[[Any, Any], Any]] = {
    "flipped": lambda value, other: _flipped(value),
    "cut": lambda value, other: value[:-5],
    "cut to its head": lambda value, other: value[:14],
    "empty": lambda value, other: value[:0],
    "swapped": lambda value, other: other,
    "plain": lambda value, other: _plain(value),
}


async def _refuses(it: Stored, read: str) -> bool:
    try:
        await READS[read](it)
    except (StorageCorrupt, InputDigestMismatch):
        return True
    return False


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("value", VALUES, ids=NAMES)
def test_a_value_that_was_changed_cut_or_moved_is_refused(tmp_path: Path, value: Any) -> None:
    table, column, where, elsewhere, read = value

    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await _filled(it)
            await READS[read](it)
            own = stored_value(tmp_path, table, column, where)
            other = stored_value(tmp_path, table, column, elsewhere)
            unnoticed: list[str] = []
            for name, tampering in TAMPERINGS.items():
                store_value(tmp_path, table, column, tampering(own, other), where)
                unnoticed += [] if await _refuses(it, read) else [name]
            assert unnoticed == []
            store_value(tmp_path, table, column, own, where)
            await READS[read](it)

    run(main())


FACTS = [
    ("records", "status", "'failure'", CALL, "journal"),
    ("records", "kind", "'model_request2'", CALL, "journal"),
    ("records", "handler_id", "'other'", CALL, "operations"),
    ("records", "attempt", "7", CALL, "journal"),
    ("records", "finished_at", "finished_at + 1", CALL, "journal"),
    ("records", "payload_packing", "1 - payload_packing", CALL, "payload"),
    ("records", "input_packing", "2", CALL, "input"),
    ("runs", "function", "'other'", ENDED, "run"),
    ("runs", "version", "2", ENDED, "run"),
    ("runs", "output_packing", "2", ENDED, "run"),
    ("timers", "wake_at", "wake_at - 1", "sequence = 1", "journal"),
    ("pieces", "packing", "1 - packing", "parent IS NULL", "talk"),
    ("pieces", "parent", "NULL", "parent IS NOT NULL", "talk"),
    ("records", "input_piece", "NULL", "step_id = 'talk'", "talk"),
    ("records", "payload_piece", "{piece}", CALL, "payload"),
    ("runs", "input_piece", "{piece}", ENDED, "given"),
]


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("fact", FACTS, ids=[f"{each[0]}.{each[1]}" for each in FACTS])
def test_what_goes_with_a_value_cannot_be_changed_either(tmp_path: Path, fact: Any) -> None:
    table, column, new, where, read = fact

    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await _filled(it)
            column_of = "digest" if on_server(tmp_path) else "piece_number"
            piece = f"(SELECT {column_of} FROM pieces WHERE parent IS NULL)"
            sql(tmp_path, f"UPDATE {table} SET {column} = {new.format(piece=piece)} WHERE {where}")
            assert await _refuses(it, read)

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_reason_that_was_moved_to_another_decision_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            stored(tmp_path, vault=keyring().vault()) as it,
            ReceiptStore(url_of(tmp_path), encryption=keyring()) as receipts,
        ):
            for name in ("one", "two"):
                done = await effect(it, it.fence, name, Move.DOUBT, "no reply")
                receipt = await it.store.read_receipt(done.operation_key)
                assert receipt is not None
                await receipts.settle(
                    done.operation_key,
                    NeverWill(),
                    by="ada",
                    why=f"because of {name}",
                    expect_version=receipt.version,
                )
            assert (await receipts.decisions(done.operation_key))[0].decided_why == "because of two"
            for table, read in (("decisions", receipts.decisions), ("receipts", receipts.matching)):
                other = f"(SELECT decided_why FROM {table} WHERE operation_key <> ?)"
                change = f"UPDATE {table} SET decided_why = {other} WHERE operation_key = ?"
                sql(tmp_path, change, done.operation_key, done.operation_key)
                with pytest.raises(StorageCorrupt, match=r"the reason of a decision .* moved"):
                    await read(done.operation_key)

    run(main())


@pytest.mark.usefixtures("storage")
def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring("b").vault()) as it:
            await _filled(it)
        # Or it could not even be opened without that key.
        sql(tmp_path, "DELETE FROM keys")
        app = app_on(tmp_path, encryption=keyring("a", accept_plaintext=True))
        async with app.connect():
            with pytest.raises(KeyUnavailable, match=r"operation run-1/call/1 .* the key 'b'"):
                await app.store.read_payload(RUN, "call", 1)

    run(main())
