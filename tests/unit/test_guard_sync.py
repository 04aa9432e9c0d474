"""`guard` for programs without an event loop: the same receipts, and functions of the caller's."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import ReceiptStore, guard, guard_sync
from perdure.audit import AuditTable
from perdure.background import Background, Caller
from perdure.clock import SystemClock
from perdure.effects.answer import Landed
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport
from perdure.errors import (
    EffectAmbiguous,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    EngineClosed,
    InvalidFunction,
    InvalidPayload,
    StorageReadOnly,
)
from tests.harness import run, sql
from tests.receipts import CHARGE, IDEMPOTENT, QUERYABLE

PATIENCE_SECONDS = 60.0
SOON = EffectPolicy(timeout_seconds=0.01)


class Told:
    """An audit that lets threads wait for what happens to an effect."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.ambiguous = threading.Event()
        self.exhausted = threading.Event()

    async def write(self, facts: Mapping[str, Any]) -> None:
        self.states.append(facts["operation_state"])
        if facts["operation_state"] == "ambiguous":
            self.ambiguous.set()
        if facts["operation_reconciliation_exhausted"]:
            self.exhausted.set()


class Held:
    """A function that a caller's thread stays in until a test lets it go."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.reached = threading.Event()
        self.go = threading.Event()
        self.calls = 0

    def __call__(self, identity: OperationIdentity) -> Any:
        self.calls += 1
        self.reached.set()
        assert self.go.wait(PATIENCE_SECONDS)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end


class Still(SystemClock):
    """A clock by which a claim takes no time, so that its time is never over before the send."""

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, told: Told) -> Iterator[ReceiptStore]:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with ReceiptStore(url, audit=told, clock=Still()) as store:
        yield store


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def state(folder: Path) -> tuple[Any, ...]:
    (row,) = sql(folder, "SELECT state, problem FROM receipts")
    return row


def vanish(identity: OperationIdentity) -> None:
    raise ConnectionResetError


def late(pool: ThreadPoolExecutor, store: ReceiptStore, told: Told, held: Held, **more: Any) -> Any:
    """Send what takes longer than it may, and let it go when the receipt says so."""
    more.setdefault("policy", SOON)
    call = pool.submit(guard_sync, store, CHARGE, held, **more)
    assert told.ambiguous.wait(PATIENCE_SECONDS)
    assert not call.done()
    held.go.set()
    return call.result(PATIENCE_SECONDS)


def test_an_effect_is_applied_once_in_the_thread_and_the_context_of_its_caller(
    store: ReceiptStore, tmp_path: Path
) -> None:
    session = contextvars.ContextVar("session", default="none")
    seen: list[Any] = []

    def send(identity: OperationIdentity) -> dict[str, str]:
        seen.append((threading.get_ident(), session.get(), identity))
        return {"receipt": "r-1"}

    session.set("mine")
    for _ in range(2):
        assert guard_sync(store, CHARGE, send, arguments={"cents": 5}) == {"receipt": "r-1"}
    assert seen == [(threading.get_ident(), "mine", CHARGE)]
    assert state(tmp_path) == ("completed", None)


def test_without_a_store_it_only_sends() -> None:
    async def inside() -> Any:
        return guard_sync(None, CHARGE, lambda identity: identity.target)

    assert run(inside()) == "bank"


@pytest.mark.parametrize("refusal", [EffectRejected("no funds"), EffectNotSent("no route")])
def test_a_refusal_is_raised_as_it_is_and_another_call_may_try_again(
    store: ReceiptStore, refusal: Exception
) -> None:
    def refuse(identity: OperationIdentity) -> None:
        raise refusal

    with pytest.raises(type(refusal)) as caught:
        guard_sync(store, CHARGE, refuse)
    assert caught.value is refusal
    assert guard_sync(store, CHARGE, lambda identity: "done") == "done"


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), StopIteration("odd")])
def test_all_else_is_doubt(store: ReceiptStore, tmp_path: Path, error: Exception) -> None:
    def fail(identity: OperationIdentity) -> None:
        raise error

    with pytest.raises(EffectAmbiguous, match=type(error).__name__):
        guard_sync(store, CHARGE, fail)
    assert state(tmp_path)[0] == "ambiguous"


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        ({"send": lambda identity: object()}, EffectAmbiguous),
        ({"send": lambda identity: 1, "arguments": object()}, InvalidPayload),
    ],
)
def test_what_is_no_json_is_refused(
    store: ReceiptStore, ask: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        guard_sync(store, CHARGE, **ask)


def test_the_target_is_asked_in_the_callers_thread(store: ReceiptStore) -> None:
    asked: list[int] = []

    def lookup(identity: OperationIdentity) -> Landed:
        asked.append(threading.get_ident())
        return Landed("landed")

    landed = guard_sync(store, CHARGE, vanish, policy=QUERYABLE, lookup=lookup)
    assert (landed, asked) == ("landed", [threading.get_ident()])


def test_many_threads_send_at_once_and_each_effect_once(
    store: ReceiptStore, threads: ThreadPoolExecutor
) -> None:
    together = threading.Barrier(8, timeout=PATIENCE_SECONDS)
    sent: list[OperationIdentity] = []

    def send(identity: OperationIdentity) -> list[Any]:
        sent.append(identity)
        together.wait()  # nobody gets past it unless all eight are sending
        return [identity.run_id, threading.get_ident()]

    def pay(number: int) -> None:
        identity = OperationIdentity(f"invoice-{number}", "charge", "bank")
        paid = guard_sync(store, identity, send)
        assert paid == [identity.run_id, threading.get_ident()]

    list(threads.map(pay, range(8)))
    assert len(sent) == 8


def test_a_second_thread_waits_for_the_first_or_is_told(
    store: ReceiptStore, threads: ThreadPoolExecutor
) -> None:
    held = Held("done")
    first = threads.submit(guard_sync, store, CHARGE, held)
    assert held.reached.wait(PATIENCE_SECONDS)
    with pytest.raises(EffectInProgress):
        guard_sync(store, CHARGE, held)
    second = threads.submit(guard_sync, store, CHARGE, held, wait_seconds=PATIENCE_SECONDS)
    held.go.set()
    assert [call.result(PATIENCE_SECONDS) for call in (first, second)] == ["done", "done"]
    assert held.calls == 1


def test_an_effect_may_be_sent_while_another_is(store: ReceiptStore) -> None:
    def outer(identity: OperationIdentity) -> Any:
        fee = OperationIdentity(identity.run_id, "fee", "bank")
        return ["outer", guard_sync(store, fee, lambda _: "inner")]

    assert guard_sync(store, CHARGE, outer) == ["outer", "inner"]


def test_what_takes_too_long_is_doubt_for_others_until_its_late_answer_counts(
    store: ReceiptStore, told: Told, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    assert late(threads, store, told, Held("late")) == "late"
    assert state(tmp_path) == ("completed", None)
    assert told.states == ["ambiguous", "completed"]
    assert store.observer.counts["perdure_side_effect_reconciliation_succeeded_total"] == 1
    assert guard_sync(store, CHARGE, Held("never")) == "late"


def test_a_lookup_that_takes_too_long_is_waited_for_and_not_believed(
    store: ReceiptStore,
    told: Told,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.effects.reconcile._LOOKUP_SECONDS", 0.01)
    monkeypatch.setattr("perdure.effects.foreign._GRACE_SECONDS", 0.01)
    once = msgspec.structs.replace(QUERYABLE, reconcile_attempts=1)
    held = Held(Landed("late"))
    call = threads.submit(guard_sync, store, CHARGE, vanish, policy=once, lookup=held)
    assert told.exhausted.wait(PATIENCE_SECONDS)
    assert not call.done()
    held.go.set()
    with pytest.raises(EffectAmbiguous, match="could not say: TimeoutError"):
        call.result(PATIENCE_SECONDS)


@pytest.mark.parametrize("end", [ConnectionResetError("gone"), EffectRejected("no"), object()])
def test_what_ends_late_without_an_answer_stays_doubt(
    store: ReceiptStore, told: Told, threads: ThreadPoolExecutor, tmp_path: Path, end: Any
) -> None:
    with pytest.raises(EffectAmbiguous, match="TimeoutError"):
        late(threads, store, told, Held(end))
    assert state(tmp_path)[0] == "ambiguous"


@pytest.mark.parametrize(
    "policy",
    [
        EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=1.0),
        EffectPolicy(on_ambiguous=OnAmbiguous.RETRY, timeout_seconds=1.0),
    ],
)
def test_nothing_is_sent_again_before_the_first_send_has_ended(
    store: ReceiptStore, told: Told, threads: ThreadPoolExecutor, policy: EffectPolicy
) -> None:
    held = Held(ConnectionResetError("gone"), "again")
    assert late(threads, store, told, held, policy=policy) == "again"
    assert held.calls == 2


def test_the_target_is_not_asked_before_the_send_has_ended(
    store: ReceiptStore, told: Told, threads: ThreadPoolExecutor
) -> None:
    held = Held(ConnectionResetError("gone"))

    def lookup(identity: OperationIdentity) -> Landed:
        assert held.ends == []
        return Landed("landed")

    policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, timeout_seconds=0.01)
    assert late(threads, store, told, held, policy=policy, lookup=lookup) == "landed"


def test_a_lookup_that_takes_too_long_is_left_only_when_it_has_ended() -> None:
    go, ended = threading.Event(), threading.Event()

    def ask() -> None:
        assert go.wait(PATIENCE_SECONDS)
        ended.set()

    async def main(caller: Caller[bool]) -> bool:
        asyncio.get_running_loop().call_later(0.05, go.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await caller.ask_out(ask)
        return ended.is_set()

    async def nothing() -> None: ...

    background = Background()
    assert background.call(main)
    background.end(nothing)


def test_a_late_answer_touches_no_newer_attempt(
    store: ReceiptStore, told: Told, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    held = Held("first")
    call = threads.submit(
        guard_sync,
        store,
        CHARGE,
        held,
        policy=EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=0.01),
    )
    assert told.ambiguous.wait(PATIENCE_SECONDS)
    assert guard_sync(store, CHARGE, lambda _: "second", policy=IDEMPOTENT) == "second"
    held.go.set()
    assert call.result(PATIENCE_SECONDS) == "second"
    assert sql(tmp_path, "SELECT attempt FROM receipts") == [(2,)]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_send_is_raised_when_the_doubt_is_written(
    store: ReceiptStore, tmp_path: Path, stop: type[BaseException]
) -> None:
    def send(identity: OperationIdentity) -> None:
        raise stop

    with pytest.raises(stop):
        guard_sync(store, CHARGE, send)
    assert state(tmp_path) == ("ambiguous", "the attempt was cancelled")


@pytest.mark.parametrize(
    ("point", "states"),
    [
        ("commit.begin receipt.claim", {"failed", "ambiguous"}),
        ("effect.sent", {"completed"}),
    ],
)
def test_an_interrupt_of_a_thread_that_waits_leaves_nothing_in_flight(
    tmp_path: Path, point: str, states: set[str]
) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(passed: str) -> None:
        if passed == point:
            signal.pthread_kill(main, signal.SIGINT)

    with (
        ReceiptStore(f"sqlite:///{tmp_path / 'runs.db'}", probe=interrupt) as store,
        pytest.raises(KeyboardInterrupt),
    ):
        guard_sync(store, CHARGE, lambda identity: "done")
    assert state(tmp_path)[0] in states


def test_an_interrupt_leaves_what_other_threads_send_alone(
    store: ReceiptStore, threads: ThreadPoolExecutor
) -> None:
    held = Held("done")
    sending = threads.submit(guard_sync, store, CHARGE, held)
    assert held.reached.wait(PATIENCE_SECONDS)
    with pytest.raises(KeyboardInterrupt):
        guard_sync(store, OperationIdentity("another", "charge", "bank"), interrupted)
    held.go.set()
    assert sending.result(PATIENCE_SECONDS) == "done"


def interrupted(identity: OperationIdentity) -> None:
    raise KeyboardInterrupt


def test_an_async_function_is_refused_before_anything_is_written(
    store: ReceiptStore, tmp_path: Path
) -> None:
    async def send(identity: OperationIdentity) -> None: ...

    with pytest.raises(InvalidFunction, match="await guard"):
        guard_sync(store, CHARGE, send)
    with pytest.raises(InvalidFunction, match="await guard"):
        guard_sync(store, CHARGE, lambda identity: 1, lookup=send)
    assert sql(tmp_path, "SELECT * FROM receipts") == []


def test_inside_an_event_loop_it_says_what_to_do(store: ReceiptStore) -> None:
    async def inside() -> None:
        with pytest.raises(EngineClosed, match="await guard here"):
            guard_sync(store, CHARGE, lambda identity: 1)
        with pytest.raises(EngineClosed, match="await guard here"):
            store.close_sync()

    run(inside())


def test_open_receipts_belong_to_one_kind_of_program(store: ReceiptStore, tmp_path: Path) -> None:
    async def send(identity: OperationIdentity) -> int:
        return 1

    async def inside() -> None:
        with pytest.raises(EngineClosed, match="or by guard_sync"):
            await guard(store, CHARGE, send)
        with pytest.raises(EngineClosed, match="call close_sync"):
            await store.close()
        async with ReceiptStore.open(store.url) as own:
            with pytest.raises(EngineClosed, match="open in an event loop"):
                await asyncio.to_thread(guard_sync, own, CHARGE, lambda identity: 1)
            assert await guard(own, CHARGE, send) == 1

    run(inside())
    assert guard_sync(store, CHARGE, Held("never")) == 1


def test_closed_receipts_can_be_opened_again_by_either(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    store = ReceiptStore.open(f"sqlite:///{tmp_path / 'runs.db'}")
    store.close_sync()
    assert guard_sync(store, CHARGE, lambda identity: 1) == 1
    store.close_sync()
    store.close_sync()

    async def inside() -> None:
        async with store:
            assert [receipt.state for receipt in await store.list()] == ["completed"]

    run(inside())
    with store:
        assert guard_sync(store, CHARGE, Held("never")) == 1
    assert set(threading.enumerate()) <= threads


def test_an_audit_is_closed_with_the_loop_that_it_was_opened_in(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    audit = AuditTable(url)
    store = ReceiptStore(url, audit=audit)
    for _ in range(2):
        with store:
            assert guard_sync(store, CHARGE, lambda identity: 1) == 1

    async def answered() -> list[Any]:
        records = await audit.read()
        await audit.close()
        return [facts["operation_replay_suppressed"] for facts in records]

    assert run(answered()) == [True, False]


def test_receipts_that_cannot_be_opened_leave_no_thread(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    store = ReceiptStore.open(f"sqlite:///{tmp_path / 'nowhere' / 'runs.db'}")
    with pytest.raises(StorageReadOnly), store:
        pass
    assert set(threading.enumerate()) <= threads


def test_closing_does_not_wait_for_a_send_and_leaves_doubt(
    store: ReceiptStore, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    held = Held("done")
    sending = threads.submit(guard_sync, store, CHARGE, held, policy=IDEMPOTENT)
    assert held.reached.wait(PATIENCE_SECONDS)
    store.close_sync()
    assert state(tmp_path) == ("ambiguous", "the attempt was cancelled")
    held.go.set()
    with pytest.raises(EngineClosed, match="call again"):
        sending.result(PATIENCE_SECONDS)
    assert guard_sync(store, CHARGE, lambda identity: "again", policy=IDEMPOTENT) == "again"


def test_closing_does_not_wait_for_a_lookup(
    store: ReceiptStore, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    held = Held(Landed("landed"))
    asking = threads.submit(guard_sync, store, CHARGE, vanish, policy=QUERYABLE, lookup=held)
    assert held.reached.wait(PATIENCE_SECONDS)
    store.close_sync()
    held.go.set()
    with pytest.raises(EngineClosed, match="call again"):
        asking.result(PATIENCE_SECONDS)
    assert state(tmp_path)[0] == "ambiguous"


def test_a_send_may_close_the_receipts(store: ReceiptStore, tmp_path: Path) -> None:
    with pytest.raises(EngineClosed, match="call again"):
        guard_sync(store, CHARGE, lambda identity: store.close_sync())
    assert state(tmp_path)[0] == "ambiguous"
