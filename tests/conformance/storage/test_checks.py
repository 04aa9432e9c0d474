"""The checks themselves: each finds a driver that breaks the promise it is for."""

from __future__ import annotations

import pytest

from perdure.clock import SystemClock
from perdure.effects.receipt import MOVES, Move, ReceiptState
from perdure.engine.store import RunStore
from perdure.errors import PerdureError
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.queries import load_queries
from perdure.testing.storage import checks
from perdure.testing.storage.expecting import expect, refusal
from perdure.testing.storage.receipts import SETTLING
from perdure.urls import location_of
from tests.harness import run

CHECKS = {check.name: check for check in checks()}
FENCE = "AND generation = :generation"
BROKEN = [
    ("append_record", FENCE, "", "leases.what_stands_under_another_fence_is_not_written"),
    ("begin_timer", "AND holder = :holder", "", "leases.a_lease_that_runs_out_is_taken"),
    ("end_run", FENCE, "", "leases.what_stands_under_another_fence_is_not_written"),
    (
        "renew_worker",
        "lease_until = :lease_until",
        "lease_until = lease_until",
        "leases.a_renewal_keeps_the_lease_and_tells_what_is_owned",
    ),
    (
        "claim_runs",
        "ORDER BY run_number",
        "ORDER BY run_number DESC",
        "queue.waiting_runs_are_claimed_oldest_first_and_once",
    ),
    (
        "end_timer",
        "AND sequence = :sequence",
        "",
        "timers.the_record_of_a_delay_ends_it_and_no_other",
    ),
    (
        "settle_receipt",
        "AND attempt = :attempt",
        "",
        "receipts.a_late_report_does_not_touch_a_newer_attempt",
    ),
    (
        "begin_attempt",
        "AND version = :version",
        "",
        "receipts.only_what_is_as_it_was_seen_is_sent_again",
    ),
    (
        "mark_duplicate",
        "residual_duplicate_risk = 1,",
        "",
        "receipts.a_late_proof_marks_the_duplicate",
    ),
    ("claim_lookup", "lookup_at <= :now", "1", "lookups.one_asks_at_a_time"),
    ("end_lookup", "AND version = :version", "", "lookups.the_right_to_ask_ends"),
    (
        "free_run",
        "AND problem_code = 'EffectAmbiguous'",
        "",
        "lookups.whoever_ends_doubt_frees_the_run_that_waits_for_it",
    ),
    (
        "erase_piece",
        "AND NOT EXISTS (SELECT 1 FROM pieces AS child WHERE child.parent = :piece)",
        "",
        "erasure.beginnings_that_others_share_stay",
    ),
    (
        "insert_receipt",
        "WHERE NOT EXISTS (SELECT 1 FROM tombstones WHERE operation_key = :operation_key)\nAND",
        "WHERE",
        "erasure.an_erased_effect_is_never_sent_again",
    ),
]


@pytest.mark.parametrize(("query", "old", "new", "name"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_driver_that_breaks_a_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, query: str, old: str, new: str, name: str
) -> None:
    place = location_of("memory:")

    async def open_store() -> RunStore:
        return await place.open(SystemClock(), Observer(), 20.0, no_probe, create=True)

    queries = load_queries("sqlite")
    assert old in queries[query]
    monkeypatch.setitem(queries, query, queries[query].replace(old, new))
    monkeypatch.setattr("perdure.testing.storage.expecting._PATIENCE_SECONDS", 0.5)
    with pytest.raises((AssertionError, PerdureError)):
        run(CHECKS[name](open_store))


def test_every_move_that_the_table_has_is_checked() -> None:
    begun = {(None, Move.CLAIM), (ReceiptState.AMBIGUOUS, Move.SEND_AGAIN)}
    checked = {(state, move) for state in ReceiptState for move in (*SETTLING, Move.CLAIM)}
    assert set(MOVES) <= checked | begun


def test_what_is_not_as_expected_is_told() -> None:
    with pytest.raises(AssertionError, match="the answer: expected 2, found 1"):
        expect(1, 2, "the answer")
    nothing = "a wrong key: expected KeyError, and nothing was raised"
    with pytest.raises(AssertionError, match=nothing), refusal(KeyError, "a wrong key"):
        pass
