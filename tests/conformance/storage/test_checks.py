"""The checks themselves: each finds a driver that breaks the promise it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perdure.clock import SystemClock
from perdure.effects.receipt import MOVES, Move, ReceiptState
from perdure.engine.retention import Expiry
from perdure.engine.store import RunStore
from perdure.errors import InvalidOptions, PerdureError
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.session.channel import Snapshot
from perdure.storage.archived import taken
from perdure.storage.blobs import Blobs
from perdure.storage.queries import load_queries
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.retention import SqliteRetention
from perdure.storage.vault import OpenVault
from perdure.testing.storage import OPTIONAL, checks
from perdure.testing.storage.expecting import expect, refusal
from perdure.testing.storage.receipts import SETTLING
from perdure.urls import location_of
from tests.harness import run

CHECKS = {check.name: check for check in checks()}
FENCE = "AND generation = :generation"
NO_MORE = "queues.no_more_are_claimed_than_a_queue_lets_through"
RATE = "queues.a_rate_bounds_what_begins"
BROKEN = [
    ("note_turn", "DO UPDATE SET open = 1", "DO NOTHING", "turns.an_end_is_there_until_it_is_told"),
    ("close_turn", FENCE, "", "turns.a_run_that_goes_on_has_not_been_told_of"),
    ("ended_turns", "'failed', ", "", "turns.an_end_is_there_until_it_is_told"),
    ("ended_turns", "open AND", "", "turns.an_end_is_there_until_it_is_told"),
    ("list_turns", "WHERE session = :session", "", "turns.what_a_run_answers_is_noted"),
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
    ("claim_runs", "AND queue IS NULL", "", "queues.a_full_queue_keeps_nobody_else_waiting"),
    (
        "open_queues",
        "(:asked IS NULL OR name = :asked)",
        "1",
        "queues.a_claim_for_one_queue_takes_of_that_alone",
    ),
    (
        "live_runs",
        ", 'cancelled'",
        "",
        "queues.what_waits_for_a_worker_is_listed_page_by_page",
    ),
    (
        "waiting_runs",
        "AND run_number > :after",
        "",
        "queues.what_waits_for_a_worker_is_listed_page_by_page",
    ),
    ("open_queues", "NOT paused", "1", "queues.a_full_queue_keeps_nobody_else_waiting"),
    ("open_queues", "('running', 'cancelling')", "('running')", NO_MORE),
    (
        "open_queues",
        "('running', 'cancelling')",
        "('running', 'sleeping')",
        "queues.a_run_that_waits_for_a_time_holds_no_place",
    ),
    (
        "open_queues",
        "('running', 'cancelling')",
        "('none')",
        "queues.many_that_claim_never_exceed_a_limit",
    ),
    ("open_queues", "started_at > :now - rate_seconds AND ", "", RATE),
    ("claim_queued", "COALESCE(started_at, :now)", "started_at", RATE),
    ("any_due", "AND NOT paused", "", RATE),
    ("next_queued", "ORDER BY priority DESC, run_number", "ORDER BY run_number", NO_MORE),
    ("next_keyed", "AND queue_key IS NULL", "AND 0", "queues.a_key_has_places_of_its_own"),
    ("next_keyed", "AND queue_key > keys.queue_key", "AND 0", "queues.a_key_has_places_of_its_own"),
    ("insert_run", ":queue_key", "NULL", "queues.a_run_of_a_queue_waits_in_it"),
    (
        "declare_queue",
        "rate_seconds = excluded.rate_seconds\n",
        "paused = 0\n",
        "queues.queues_are_declared_and_listed",
    ),
    ("mark_erased", ", queue_key = NULL", "", "queues.a_run_takes_its_queue_with_it"),
    ("know_queue", "(:queue)", "('none')", "queues.a_run_takes_its_queue_with_it"),
    ("import_run", ":priority", "0", "queues.a_run_takes_its_queue_with_it"),
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
        "list_decisions",
        "operation_key, attempt,",
        "operation_key, 1,",
        "receipts.after_so_many_attempts_only_a_person_lets_another_begin",
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
    ("collect_receipts", "NOT EXISTS", "EXISTS", "retention.what_is_counted_is_what_is_deleted"),
    (
        "count_tombstones_expired",
        "WHERE erased_at < :before",
        "",
        "retention.what_is_counted_is_what_is_deleted",
    ),
    (
        "expired_runs",
        "finished_at < :before",
        "finished_at <= :before",
        "retention.only_what_was_over_before_an_instant_is_deleted",
    ),
    (
        "mark_erased",
        "erased_at = :now",
        "erased_at = NULL",
        "collecting.it_is_deleted_in_steps_that_others_write_between",
    ),
    (
        "erase_piece",
        "AND NOT EXISTS (SELECT 1 FROM pieces AS child WHERE child.parent = :piece)",
        "",
        "retention.beginnings_that_others_share_stay",
    ),
    (
        "collect_tombstones",
        "erased_at < :before",
        "1",
        "retention.an_effect_is_not_sent_again_for_as_long_as_anything_of_it_is_kept",
    ),
    (
        "any_vanished",
        "AND NOT (",
        "AND EXISTS (SELECT 1 FROM workers WHERE workers.holder = receipts.holder) AND NOT (",
        "retention.a_worker_that_is_forgotten_is_still_gone",
    ),
    (
        "collect_receipts",
        "state IN ('completed', 'failed') AND settled_at < :before",
        "1",
        "collecting.what_is_sent_again_meanwhile_keeps_its_receipt",
    ),
    (
        "erase_piece",
        "AND NOT EXISTS (SELECT 1 FROM records WHERE input_piece = :piece)",
        "",
        "collecting.what_begins_alike_may_be_written_meanwhile",
    ),
    ("import_record", ":nested", "0", "archives.a_run_that_ended_comes_back_to_the_byte"),
    (
        "import_timer",
        ":wake_at",
        "0",
        "archives.a_run_that_waits_goes_on_where_a_person_lets_it",
    ),
    (
        "import_receipt",
        "DO NOTHING",
        "DO UPDATE SET state = excluded.state",
        "archives.a_receipt_that_is_there_is_never_replaced",
    ),
    (
        "erase_piece",
        "AND NOT EXISTS (SELECT 1 FROM runs WHERE output_piece = :piece)",
        "",
        "archives.what_comes_shares_beginnings_with_what_is_there",
    ),
    (
        "reseal_timers",
        "input = :input",
        "input = input",
        "encryption.everything_is_encrypted_with_another_key",
    ),
    (
        "reseal_receipts",
        "payload = :payload",
        "payload = payload",
        "encryption.what_was_written_without_a_key_is_encrypted",
    ),
    (
        "insert_checkpoint",
        "FROM runs WHERE run_id = :run_id",
        "FROM runs WHERE run_number = 1",
        "checkpoints.checkpoints_belong_to_runs",
    ),
    (
        "find_checkpoint",
        "AND checkpoint_id = :checkpoint_id",
        "",
        "checkpoints.a_checkpoint_comes_back_as_it_was_saved",
    ),
    (
        "find_checkpoint",
        "run_number = :run_number",
        "run_number <> :run_number",
        "checkpoints.a_checkpoint_only_goes_on_from_the_one_that_is_there",
    ),
    (
        "find_checkpointed",
        "erased_by",
        "NULL",
        "checkpoints.checkpoints_are_erased_with_their_run",
    ),
    (
        "checkpoints_to_erase",
        "WHERE run_number = :run_number",
        "WHERE 0",
        "checkpoints.checkpoints_are_collected_with_their_run",
    ),
    (
        "remove_checkpoint",
        "AND checkpoint_id = :checkpoint_id",
        "",
        "checkpoints.checkpoints_are_removed_one_by_one",
    ),
    (
        "list_checkpoints",
        "ORDER BY checkpoint_number",
        "ORDER BY checkpoint_id",
        "checkpoints.checkpoints_are_exported_with_their_run",
    ),
    (
        "declare_schedule",
        "SET function = excluded.function,",
        "SET counted_to = excluded.counted_to, function = excluded.function,",
        "schedules.a_schedule_is_written_once_and_counts_from_then",
    ),
    (
        "count_ticks",
        "AND counted_to = :seen",
        "",
        "schedules.one_of_those_that_count_at_once_does",
    ),
    ("count_ticks", "AND rule = :rule", "", "schedules.nothing_is_counted_by_another_rule"),
    (
        "count_ticks",
        "AND NOT paused",
        "",
        "schedules.a_paused_schedule_counts_from_its_resumption",
    ),
    (
        "resume_schedule",
        "max(counted_to, :now)",
        ":now",
        "schedules.a_paused_schedule_counts_from_its_resumption",
    ),
    *(
        ("holds_blobs", there, there.replace("4", "40"), "blobs.whether_there_are_blobs_is_known")
        for there in ("WHERE packing >= 4", "WHERE input_packing >= 4", "payload_packing >= 4")
    ),
    *(
        ("holds_blobs", there, "", "blobs.whether_there_are_blobs_is_known")
        for there in (" AND input <> x''", " AND output IS NOT NULL")
    ),
    *(
        ("newest_blobs", there, there.replace("4", "40"), "blobs.whether_there_are_blobs_is_known")
        for there in ("WHERE packing >= 4", "WHERE input_packing >= 4", "payload_packing >= 4")
    ),
    (
        "holds_blobs",
        "SELECT 1 FROM blobs",
        "SELECT 1 FROM blobs WHERE since > 0",
        "blobs.whoever_has_no_blobs_says_so",
    ),
    ("find_message", "message_id = :message_id", "1", "inbox.a_message_is_there_once_by_its_id"),
    (
        "next_message",
        "ORDER BY message_number",
        "ORDER BY message_id",
        "inbox.messages_come_in_the_order_of_their_names",
    ),
    (
        "withdraw_message",
        "AND taken_at IS NULL",
        "",
        "inbox.what_nobody_has_taken_is_edited_and_withdrawn",
    ),
    (
        "take_message",
        "AND edition = :edition",
        "",
        "inbox.a_message_is_taken_once_with_the_record_of_it",
    ),
    ("take_message", "AND taken_at IS NULL", "", "inbox.one_of_several_takes_a_message"),
    ("find_recipient", "state", "'pending'", "inbox.a_run_that_has_ended_takes_no_messages"),
    (
        "park_run",
        "WHEN heard THEN 'pending'",
        "",
        "inbox.a_message_before_its_waiter_is_never_lost",
    ),
    (
        "begin_timer",
        ":wake_at, :awaits",
        ":wake_at, ''",
        "inbox.a_message_wakes_the_run_that_awaits_it",
    ),
    (
        "park_run",
        "ELSE :state",
        "ELSE 'pending'",
        "parking.a_run_that_is_put_away_takes_nothing_but_rows",
    ),
    (
        "wake_runs",
        "state IN ('sleeping', 'suspended')",
        "state = 'sleeping'",
        "parking.what_waits_is_woken_when_its_time_is_over",
    ),
    (
        "wake_runs",
        "ORDER BY wake_at",
        "ORDER BY wake_at DESC",
        "parking.so_many_are_woken_at_once_and_the_late_ones_first",
    ),
    (
        "wake_runs",
        "LIMIT :limit",
        "",
        "parking.so_many_are_woken_at_once_and_the_late_ones_first",
    ),
    (
        "park_run",
        "CASE WHEN cancel_requested THEN 'cancelled'",
        "CASE WHEN 0 THEN 'cancelled'",
        "parking.what_has_come_or_was_asked_for_is_not_put_away",
    ),
    (
        "park_run",
        "AND name IN (SELECT value FROM json_each(:awaits))",
        "",
        "parking.what_has_come_or_was_asked_for_is_not_put_away",
    ),
    (
        "cancel_run",
        "ELSE 'cancelled'",
        "ELSE state",
        "parking.a_run_that_is_put_away_is_cancelled_at_once",
    ),
    ("park_run", FENCE, "", "parking.only_its_owner_puts_a_run_away"),
    (
        "park_run",
        "min(COALESCE(:until, deadline_at), COALESCE(deadline_at, :until))",
        ":until",
        "parking.a_run_is_woken_for_its_deadline",
    ),
    (
        "insert_run",
        ":deadline_at, :parent",
        ":deadline_at, NULL",
        "parking.the_end_of_a_run_is_told_to_the_one_that_started_it",
    ),
    (
        "cancel_run",
        "JOIN below ON runs.parent = below.run_id",
        "JOIN below ON runs.parent = below.run_id AND runs.state = 'running'",
        "parking.a_cancellation_reaches_the_runs_below",
    ),
    (
        "open_approvals",
        "ORDER BY approval_number",
        "ORDER BY item_id",
        "approvals.what_is_asked_comes_back_and_its_wait_with_it",
    ),
    ("read_approval", "answer, answered_by", "NULL, answered_by", "approvals.one_answer_wins"),
    (
        "tell_answered",
        ":awaits, :awaits",
        ":awaits, 'answered'",
        "approvals.an_answer_lets_the_run_go_on",
    ),
    (
        "read_approval",
        "timers.run_number IS NOT NULL AND runs.state",
        "runs.state",
        "approvals.what_is_not_as_it_was_shown_is_not_answered",
    ),
    ("begin_timer", FENCE, "", "approvals.only_the_owner_of_a_run_asks"),
    (
        "import_run",
        ":wake_at, :deadline_at, :parent",
        ":wake_at, NULL, :parent",
        "archives.a_run_that_was_put_away_waits_for_a_person",
    ),
    (
        "import_message",
        ":taken_at",
        "NULL",
        "archives.a_run_that_ended_comes_back_to_the_byte",
    ),
    (
        "import_approval",
        ":decision, :answer",
        "NULL, NULL",
        "archives.a_run_that_ended_comes_back_to_the_byte",
    ),
    (
        "messages_to_erase",
        "WHERE run_number = :run_number",
        "WHERE 0",
        "erasure.nothing_of_an_erased_run_is_left_but_a_tombstone",
    ),
    (
        "approvals_to_erase",
        "WHERE run_number = :run_number",
        "WHERE 0",
        "erasure.nothing_of_an_erased_run_is_left_but_a_tombstone",
    ),
    (
        "reseal_messages",
        "payload = :payload",
        "payload = payload",
        "encryption.everything_is_encrypted_with_another_key",
    ),
    (
        "reseal_approvals",
        "answer = :answer",
        "answer = answer",
        "encryption.everything_is_encrypted_with_another_key",
    ),
    (
        "find_published",
        "AND message_id = :message_id",
        "AND 0",
        "sessions.what_was_said_comes_back",
    ),
    (
        "read_page",
        "ORDER BY serial DESC LIMIT :limit",
        "ORDER BY serial LIMIT :limit",
        "sessions.what_was_said_comes_back",
    ),
    (
        "advance_sessions",
        "head = :head",
        "head = head",
        "sessions.versions_are_committed_in_their_order",
    ),
    (
        "read_deliveries",
        "AND version > :after ORDER BY version LIMIT :limit",
        "AND version > :after ORDER BY version DESC LIMIT :limit",
        "sessions.every_cursor_leads_to_the_same_messages",
    ),
    (
        "join_session_messages",
        "version = :version, ",
        "",
        "sessions.every_cursor_leads_to_the_same_messages",
    ),
    ("drop_joined", "WHERE", "WHERE 0 AND", "sessions.what_was_streamed_becomes_one_message"),
    (
        "open_streams",
        "AND run_id = :run_id",
        "AND run_id <> :run_id",
        "sessions.what_was_streamed_becomes_one_message",
    ),
    (
        "held_fences",
        "run_id, holder, generation FROM runs\nWHERE",
        ":run_id, :holder, :generation FROM runs\nWHERE 1 OR",
        "sessions.what_stands_under_another_fence_is_not_written",
    ),
    (
        "find_changed",
        "version, run_id",
        "version, 'run-1'",
        "sessions.what_stands_under_another_fence_is_not_written",
    ),
    (
        "read_page",
        "AND serial IN (SELECT serial FROM page)",
        "AND version % 3 > 0",
        "sessions.a_snapshot_is_of_one_moment",
    ),
    (
        "read_deliveries",
        "SELECT 0 AS kind, head AS version",
        "SELECT 0 AS kind, head + 9 AS version",
        "sessions.what_is_no_cursor_of_the_session_is_refused",
    ),
    *(
        (query, "AND NOT ephemeral", "", "sessions.what_is_ephemeral_is_delivered_and_not_kept")
        for query in ("find_changed", "read_page")
    ),
    (
        "erase_session",
        "floor = head",
        "floor = floor",
        "sessions.an_erased_session_begins_anew",
    ),
    (
        "collect_sessions",
        "AND state NOT IN ('completed', 'failed', 'cancelled')",
        "AND 0",
        "sessions.sessions_that_were_silent_are_collected",
    ),
    (
        "count_sessions_expired",
        "changed_at < :before",
        "1",
        "retention.what_is_counted_is_what_is_deleted",
    ),
    *(
        (
            f"reseal_{name}",
            "document = :document",
            "document = document",
            "encryption.everything_is_encrypted_with_another_key",
        )
        for name in ("session_messages", "session_appends")
    ),
]
SQLITE = "perdure.storage.sqlite"


async def nothing(*given: Any) -> None:
    """Stand in for what a driver ought to do."""


async def everything_is_new(*given: Any) -> bool:
    return True


async def counted_twice(store: Any, expiry: Expiry) -> Mapping[str, int]:
    counts = await store.count_expired(expiry)
    await asyncio.sleep(0)
    await SqliteRetention.collect_some(store, expiry)
    return counts


async def inside(blobs: Any, wholes: Sequence[Any]) -> list[Any]:
    return [*wholes]


async def unchecked(blobs: Any, place: str, reference: bytes) -> bytes:
    stored = await blobs._store.get(reference[-32:].hex())
    return blobs._rows.vault.unseal_blob(reference[:-32], stored or b"")


async def all_swept(blobs: Any) -> None:
    blobs._store.data.clear()


async def swept_where_there_are_blobs(blobs: Any) -> None:
    if blobs._store is not None:
        await SWEEP(blobs)


def as_it_is(data: bytes) -> bytes:
    return data


def without_a_vault(*given: Any, blobs: Any) -> Database:
    return Database(*given[:-1], OpenVault(), blobs=blobs)


async def torn(store: Any, session: str, limit: int) -> Snapshot:
    page = await store.session_page(session, None, limit)
    await asyncio.sleep(0)
    return Snapshot(page.messages, (await store.session_heads([session]))[session], page.more)


def anything(*given: Any, **more: Any) -> None:
    """Check nothing."""


def refused(*given: Any) -> None:
    raise taken("it")


SWEEP = Blobs.sweep
BLOBS = "perdure.storage.blobs.Blobs"
PARTS = [
    (
        {f"{SQLITE}.erasure._ROWS": 5000},
        "collecting.it_is_deleted_in_steps_that_others_write_between",
    ),
    (
        {f"{SQLITE}.SqliteStorage.collect_some": counted_twice},
        "collecting.several_may_collect_at_once",
    ),
    (
        {f"{SQLITE}.SqliteStorage.import_run": everything_is_new},
        "archives.a_run_that_is_there_is_not_written_again",
    ),
    (
        {f"{SQLITE}.archive.SqliteArchive._import_receipt": refused},
        "archives.receipts_that_outlived_their_run_are_its_own_again",
    ),
    ({f"{BLOBS}.lift_rests": inside}, "blobs.large_values_stand_outside_and_come_back"),
    ({f"{BLOBS}._fetch": unchecked}, "blobs.what_is_missing_or_was_changed_is_refused"),
    ({f"{BLOBS}.sweep": swept_where_there_are_blobs}, "blobs.whoever_has_no_blobs_says_so"),
    ({f"{BLOBS}.sweep": nothing}, "blobs.an_erasure_deletes_what_nobody_else_needs"),
    ({f"{BLOBS}.sweep": nothing}, "blobs.a_collection_deletes_what_nobody_else_needs"),
    (
        {"perdure.storage.vault.salted": as_it_is, "perdure.storage.vault.unsalted": as_it_is},
        "blobs.what_was_refused_takes_nothing_with_it",
    ),
    ({f"{BLOBS}.sweep": all_swept}, "blobs.a_collection_leaves_what_is_needed_meanwhile"),
    ({f"{BLOBS}.lift_rests": inside}, "blobs.a_run_is_imported_with_its_large_values"),
    ({f"{SQLITE}.Database": without_a_vault}, "encryption.only_who_has_the_key_reads"),
    (
        {f"{SQLITE}.reencryption.BATCH_ROWS": 5000},
        "encryption.it_is_encrypted_in_steps_that_others_write_between",
    ),
    (
        {f"{SQLITE}.SqliteStorage.session_snapshot": torn},
        "sessions.a_snapshot_is_of_one_moment",
    ),
    (
        {"perdure.storage.session_rows.check_size": anything},
        "sessions.what_cannot_be_stored_is_refused",
    ),
]


@pytest.mark.parametrize(("query", "old", "new", "name"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_driver_that_breaks_a_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, query: str, old: str, new: str, name: str
) -> None:
    queries = load_queries("sqlite")
    assert old in queries[query]
    monkeypatch.setitem(queries, query, queries[query].replace(old, new))
    breaks(monkeypatch, name)


@pytest.mark.parametrize(("parts", "name"), PARTS, ids=[name for _, name in PARTS])
def test_a_driver_that_leaves_a_part_out_is_found(
    monkeypatch: pytest.MonkeyPatch, parts: Mapping[str, Any], name: str
) -> None:
    for part, other in parts.items():
        monkeypatch.setattr(part, other)
    breaks(monkeypatch, name)


def breaks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place = location_of("memory:")

    async def open_store(**given: Any) -> RunStore:
        return await place.open(SystemClock(), Observer(), 20.0, no_probe, create=True, **given)

    monkeypatch.setattr("perdure.testing.storage.expecting._PATIENCE_SECONDS", 0.5)
    with pytest.raises((AssertionError, PerdureError)):
        run(CHECKS[name](open_store))


def test_only_what_is_optional_can_be_left_out() -> None:
    left = {check.name.partition(".")[0] for check in checks(without=["blobs", "encryption"])}
    assert left == {check.name.partition(".")[0] for check in checks()} - OPTIONAL
    with pytest.raises(InvalidOptions, match="'journal' cannot be left out"):
        checks(without=["blobs", "journal"])
    with pytest.raises(InvalidOptions, match=r"without=\['blobs'\]"):
        checks(without="blobs")


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
