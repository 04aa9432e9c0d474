"""The checks themselves: each finds an engine that breaks the promise it is for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest

from perdure import App, current
from perdure.asked_effect import AskedEffect
from perdure.attempt import Attempt, make_attempt
from perdure.declaration import EffectDeclaration
from perdure.engine.archived_run import RunArchive
from perdure.engine.fork import Fork, _before, fork_run
from perdure.engine.letters import letter_of
from perdure.engine.registry import Registry, RunFunction
from perdure.engine.schedules import tick_id
from perdure.engine.store import RunEnd
from perdure.engine.worker import Worker
from perdure.errors import PerdureError, StreamFailed
from perdure.fence import Fence
from perdure.functions import Operation, declared_of
from perdure.inbox import NewMessage
from perdure.journal.failures import failure_of
from perdure.journal.record import Failure, Success
from perdure.session.codec.ui_texts import as_step
from perdure.storage.queries import load_queries
from perdure.storage.sqlite import SqliteStorage
from perdure.testing.engine import checks
from perdure.waits import Waiter
from tests.acceptance.samples import some
from tests.harness import run

CHECKS: Final = {check.name: check for check in checks()}
FENCE: Final = "AND holder = :holder AND generation = :generation"
SERVED: Final = "AND function || '@' || version IN (SELECT value FROM json_each(:served))"
RELEASED: Final = "CASE WHEN cancel_requested THEN 'cancelled' ELSE 'pending' END"
STORAGE: Final = "perdure.storage.sqlite.SqliteStorage"
WORKER: Final = "perdure.engine.worker.Worker"
REPLAY: Final = "perdure.journal.replay.Replay"
PATIENCE: Final = "perdure.testing.storage.expecting._PATIENCE_SECONDS"
APPLY: Final = "perdure.boundary.Boundary.apply"


def nothing(*given: Any, **more: Any) -> None:
    """Do nothing, and find nothing."""


async def nothing_async(*given: Any, **more: Any) -> None:
    """Do nothing."""


def drawn(*given: Any) -> str:
    """Return another text each time."""
    return secrets.token_hex(8)


def ticked(name: str, instant: int) -> str:
    return f"{tick_id(name, instant)}.{drawn()}"


def plain(codec: Any, data: bytes, **more: Any) -> Any:
    return json.loads(data)


def without_default(function: RunFunction, value: Any) -> Any:
    return value if isinstance(value, int) else None


BEGIN = Worker._begin
BEFORE = _before
END_RUN = SqliteStorage.end_run
FIND = Registry.find
MAKE_ATTEMPT = make_attempt


def begin_twice(worker: Worker, claim: Any) -> None:
    BEGIN(worker, claim)
    BEGIN(worker, claim)


async def end_with_children(store: SqliteStorage, fence: Fence, end: RunEnd) -> Any:
    for child in await store.list_children(fence.run_id, limit=9):
        await store.request_cancel(child.run_id)
    return await END_RUN(store, fence, end)


async def without_receipt(boundary: Any, asked: AskedEffect) -> Attempt:
    return await asked.call()


async def doubtful(handler: Any) -> Attempt:
    return msgspec.structs.replace(await MAKE_ATTEMPT(handler), error=ConnectionError())


async def shown_anew(chunks: Any) -> None:
    inside = current()
    assert inside is not None
    assert inside.showing is not None
    await inside.showing.step(drawn(), as_step(chunks))


def oldest(registry: Registry, name: str, version: int | None = None) -> RunFunction:
    return FIND(registry, name, version or 1)


def all_of_it(source: RunArchive, at: str) -> Any:
    return source.records, BEFORE(source, at)[1]


def with_effect(function: Any) -> Operation:
    return msgspec.structs.replace(declared_of(function), effect=EffectDeclaration())


def unnamed(error: BaseException) -> Failure:
    return msgspec.structs.replace(failure_of(error), error_name="Failed", type_name="Failed")


async def unedited(store: Any, fork: Fork, now: float) -> str:
    return await fork_run(store, msgspec.structs.replace(fork, output_json=None), now)


def lettered_anew(*given: Any) -> NewMessage:
    return msgspec.structs.replace(letter_of(*given), message_id=drawn())


Break = tuple[str, dict[str, Any]]
"""A check, and what is otherwise: a text of a query and what stands for it, or another part."""

BREAKS: Sequence[Break] = [
    ("runs.a_run_takes_and_returns_values_with_their_types", {"perdure.app.Codec.decode": plain}),
    (
        "runs.a_run_without_an_input_gets_its_default",
        {"perdure.engine.registry.RunFunction.input_of": without_default},
    ),
    ("runs.a_run_is_started_once_by_its_id", {"perdure.engine.engine.check_same": nothing}),
    ("runs.a_run_that_raises_has_failed", {"perdure.engine.execution.failure_of": unnamed}),
    (
        "runs.what_cannot_be_started_leaves_nothing",
        {"perdure.engine.engine._known": lambda run_id, row: row},
    ),
    ("runs.several_workers_execute_each_run_once", {f"{WORKER}._begin": begin_twice}),
    (
        "replay.what_was_recorded_is_not_performed_again",
        {f"{REPLAY}.find": nothing, APPLY: without_receipt},
    ),
    (
        "replay.a_failure_is_recorded_as_a_result_is",
        {"read_records": ("WHERE", "WHERE status <> 'failure' AND")},
    ),
    (
        "replay.operations_at_once_keep_their_places",
        {"read_records": ("SELECT step_id, sequence,", "SELECT step_id, 4 - sequence,")},
    ),
    ("replay.code_that_differs_needs_attention", {"perdure.journal.replay._check": nothing}),
    (
        "replay.a_run_that_failed_goes_on_when_it_is_resumed",
        {"resume_run": ("'needs_attention', 'failed'", "'needs_attention'")},
    ),
    (
        "replay.an_operation_is_tried_again_as_its_policy_says",
        {f"{REPLAY}.count": lambda *given: 0},
    ),
    (
        "effects.an_effect_is_not_sent_again_once_it_is_known",
        {f"{REPLAY}.find": nothing, APPLY: without_receipt},
    ),
    (
        "effects.a_repeat_has_the_key_of_the_first_attempt",
        {"perdure.effects.identity.OperationIdentity.operation_key": property(drawn)},
    ),
    ("effects.an_effect_in_doubt_waits_for_a_person", {APPLY: without_receipt}),
    (
        "effects.a_person_may_let_an_effect_be_sent_again",
        {"free_run": ("AND problem_code = 'EffectAmbiguous'", "AND 0")},
    ),
    ("effects.doubt_is_told_where_the_code_asks_for_that", {APPLY: without_receipt}),
    ("effects.a_target_that_can_be_asked_settles_doubt", {APPLY: without_receipt}),
    ("effects.a_refusal_is_a_failure_and_no_doubt", {"perdure.perform.make_attempt": doubtful}),
    ("effects.what_is_read_only_has_no_receipt", {"perdure.context.declared_of": with_effect}),
    (
        "ownership.a_run_goes_on_elsewhere_when_its_worker_closes",
        {f"{STORAGE}.retire_worker": nothing_async, f"{WORKER}._give_back": nothing_async},
    ),
    ("ownership.who_lost_a_run_records_nothing_more", {"append_record": (FENCE, "")}),
    ("ownership.who_lost_a_run_does_not_complete_it", {"end_run": (FENCE, "")}),
    ("ownership.who_lost_a_run_does_not_fail_it", {"end_run": (FENCE, "")}),
    (
        "ownership.who_lost_a_run_takes_nothing_that_came",
        {
            "fence_holds": (FENCE, ""),
            "take_message": (
                "AND holder = :holder\n                  AND generation = :generation",
                "",
            ),
            "append_record": (FENCE, ""),
        },
    ),
    (
        "ownership.a_run_is_executed_by_one_worker_at_a_time",
        {
            "any_waiting": ("state = 'pending'", "state IN ('pending', 'running')"),
            "claim_runs": ("state = 'pending'", "state IN ('pending', 'running')"),
        },
    ),
    ("waiting.a_run_sleeps_and_goes_on_by_itself", {"wake_runs": ("wake_at <= :now", "0")}),
    ("waiting.a_sleep_that_began_keeps_its_end", {f"{REPLAY}.find_timer": nothing}),
    (
        "waiting.a_message_that_comes_first_is_not_lost",
        {"next_message": ("taken_at IS NULL", "taken_at IS NULL AND message_number > 1")},
    ),
    (
        "waiting.a_message_wakes_a_run_that_was_put_away",
        {"begin_timer": (":wake_at, :awaits", ":wake_at, ''")},
    ),
    (
        "waiting.messages_are_taken_once_and_in_order",
        {"next_message": ("ORDER BY message_number", "ORDER BY message_number DESC")},
    ),
    (
        "waiting.what_has_come_is_taken_without_waiting",
        {"perdure.waits.Waiter.poll": Waiter.wait_for},
    ),
    ("waiting.one_id_is_one_message", {"perdure.storage.sqlite.inbox.edition_of": nothing}),
    (
        "waiting.a_message_is_changed_until_it_is_taken",
        {"edit_message": ("AND taken_at", "AND 0 AND taken_at")},
    ),
    ("waiting.nothing_is_sent_to_who_is_not_there", {"find_recipient": ("state", "'pending'")}),
    (
        "waiting.a_wait_ends_without_a_message_when_its_time_is_over",
        {"wake_runs": ("wake_at <= :now", "0")},
    ),
    (
        "waiting.an_event_outside_has_one_answer",
        {"perdure.storage.sqlite.inbox.edition_of": nothing},
    ),
    (
        "approvals.of_many_answers_one_wins",
        {
            "answer_approval": ("AND decision IS NULL", ""),
            "perdure.storage.sqlite.approvals.check_answerable": nothing,
        },
    ),
    ("approvals.what_is_asked_for_is_asked_once", {f"{REPLAY}.find_timer": nothing}),
    ("approvals.an_answer_is_one_to_what_was_asked", {"perdure.mail.check_answer": nothing}),
    (
        "approvals.a_run_does_not_wait_for_an_answer_for_ever",
        {"read_approval": ("timers.run_number IS NOT NULL AND runs.state", "1 OR runs.state")},
    ),
    (
        "children.the_end_of_a_child_wakes_its_parent",
        {"begin_timer": (":wake_at, :awaits", ":wake_at, ''")},
    ),
    (
        "children.a_child_is_started_once",
        {"perdure.outside.shortened": drawn, f"{REPLAY}.find": nothing, APPLY: without_receipt},
    ),
    (
        "children.a_child_that_does_not_complete_says_so",
        {"perdure.engine.children._outcome_of": lambda row: Success(b'"well"')},
    ),
    ("children.a_child_goes_on_without_its_parent", {f"{STORAGE}.end_run": end_with_children}),
    (
        "children.a_cancel_goes_down_the_tree",
        {
            "cancel_run": ("runs.parent = below.run_id", "0"),
            "perdure.engine.worker.cancel_below": nothing_async,
        },
    ),
    ("cancelling.a_run_that_acts_is_told_and_ends", {f"{WORKER}._cancel": nothing}),
    (
        "cancelling.a_run_that_nobody_executes_is_cancelled_at_once",
        {"cancel_run": ("ELSE 'cancelled' END", "ELSE state END")},
    ),
    (
        "cancelling.a_cancel_outlives_the_worker_that_was_told",
        {"release_run": (RELEASED, "'pending'"), "release_runs_of": (RELEASED, "'pending'")},
    ),
    (
        "cancelling.a_run_that_has_ended_stays_as_it_is",
        {"cancel_run": ("'completed', ", "")},
    ),
    (
        "cancelling.a_run_that_takes_too_long_fails",
        {"perdure.engine.execution.Execution.late": lambda *given: False},
    ),
    (
        "cancelling.a_child_has_no_more_time_than_its_parent",
        {"perdure.perform.Performer.seconds_left": lambda performer, seconds: seconds},
    ),
    (
        "queues.a_queue_lets_through_what_its_limits_say",
        {"open_queues": ("'running', 'cancelling'", "'none'")},
    ),
    (
        "queues.what_has_priority_goes_first",
        {"next_queued": ("ORDER BY priority DESC, run_number", "ORDER BY run_number")},
    ),
    ("queues.a_paused_queue_lets_nothing_through", {"open_queues": ("NOT paused", "1")}),
    (
        "queues.a_run_that_waits_holds_no_place",
        {"open_queues": ("'running', 'cancelling'", "'running', 'cancelling', 'suspended'")},
    ),
    (
        "queues.a_queue_that_nobody_declared_is_refused",
        {"perdure.engine.queues.DeclaredQueues.check": nothing_async},
    ),
    (
        "schedules.a_tick_starts_one_run",
        {PATIENCE: 20.0, "perdure.engine.ticks.tick_id": ticked},
    ),
    (
        "sessions.a_turn_is_streamed_and_ends_once",
        {"perdure.sessions.turn_id": drawn},
    ),
    (
        "sessions.a_turn_that_goes_on_elsewhere_is_seen_once",
        {"perdure.turn._show": shown_anew},
    ),
    (
        "sessions.a_turn_that_fails_says_so_and_not_why",
        {"perdure.engine.showings._fault": lambda ended: StreamFailed("a secret")},
    ),
    (
        "sessions.a_cancel_from_the_session_ends_the_run",
        {f"{WORKER}._cancelled_there": nothing_async},
    ),
    (
        "sessions.a_turn_that_waits_is_cancelled_at_once",
        {"ended_turns": ("'cancelled'", "'none'")},
    ),
    (
        "sessions.what_is_said_to_a_run_reaches_it_once",
        {"perdure.engine.letters.letter_of": lettered_anew},
    ),
    ("forks.a_fork_goes_on_from_its_place", {"perdure.engine.fork._before": all_of_it}),
    (
        "forks.an_edit_stands_for_what_an_operation_came_to",
        {"perdure.engine.fork.fork_run": unedited},
    ),
    (
        "forks.a_fork_that_cannot_be_leaves_nothing",
        {"perdure.engine.fork._check_effects": nothing},
    ),
    (
        "versions.a_run_stays_with_its_version",
        {"any_waiting": (SERVED, ""), "claim_runs": (SERVED, "")},
    ),
    ("versions.the_newest_version_is_started", {"perdure.engine.registry.Registry.find": oldest}),
]


@pytest.mark.parametrize(
    ("name", "otherwise"),
    some([pytest.param(*case, id=case[0]) for case in BREAKS], lambda case: case.id.encode(), of=4),
)
def test_an_engine_that_breaks_a_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, otherwise: dict[str, Any]
) -> None:
    queries = load_queries("sqlite")
    monkeypatch.setattr(PATIENCE, 0.3)
    for part, other in otherwise.items():
        if part in queries:
            old, new = other
            assert old in queries[part]
            monkeypatch.setitem(queries, part, queries[part].replace(old, new))
        else:
            monkeypatch.setattr(part, other)
    place = f"memory:{drawn()}"
    with pytest.raises((AssertionError, PerdureError)):
        run(CHECKS[name](lambda **options: App(place, **options)))


def test_each_check_finds_something() -> None:
    assert [name for name, _ in BREAKS] == [*CHECKS]
