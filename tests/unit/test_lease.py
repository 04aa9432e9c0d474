from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from perdure.engine.lease import Lease
from perdure.engine.store import RunStore
from perdure.engine.workers import WorkerNews
from perdure.errors import LeaseLost, StorageBusy
from perdure.testing.manual_clock import ManualClock

PATIENCE_SECONDS = 60
NEWS = WorkerNews(frozenset({("run-1", 1)}), frozenset())


class Renewals:
    """A store whose renewals a test answers one by one."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answered = threading.Semaphore(0)
        self.answer: Callable[[], WorkerNews] = lambda: NEWS
        self.seconds: list[float] = []

    def renew_worker(self, holder: str, lease_seconds: float) -> WorkerNews:
        self.seconds.append(lease_seconds)
        self.asked.release()
        assert self.answered.acquire(timeout=PATIENCE_SECONDS)
        return self.answer()

    def wait(self) -> None:
        assert self.asked.acquire(timeout=PATIENCE_SECONDS)

    def give(self, answer: Callable[[], WorkerNews]) -> None:
        self.answer = answer
        self.answered.release()


class Watched:
    """A lease of a hundredth of a second, by a clock that stands still."""

    def __init__(self, asked_at: float = 0.0) -> None:
        self.clock = ManualClock()
        self.store = Renewals()
        self.heard = threading.Semaphore(0)
        self.lost = threading.Event()
        self.lease = Lease(
            cast("RunStore", self.store),
            "holder",
            0.01,
            asked_at,
            self.clock,
            heard=lambda news: self.heard.release(),
            lost=self.lost.set,
        )

    def holds(self) -> bool:
        try:
            self.lease.check("run-1")
        except LeaseLost:
            return False
        return True

    def renewed(self) -> None:
        self.store.give(lambda: NEWS)
        assert self.heard.acquire(timeout=PATIENCE_SECONDS)


@contextmanager
def watched(**options: Any) -> Iterator[Watched]:
    lease = Watched(**options)
    try:
        yield lease
    finally:
        for _ in range(1000):
            lease.store.answered.release()
        lease.lease.stop()


def raising(error: BaseException) -> Callable[[], WorkerNews]:
    def answer() -> WorkerNews:
        raise error

    return answer


def test_a_lease_is_trusted_from_before_its_renewal_was_sent() -> None:
    with watched() as it:
        it.store.wait()
        it.clock.advance(0.007)
        assert it.holds()
        it.clock.advance(0.002)
        assert not it.holds()
        it.clock.advance(-0.002)
        it.renewed()
        it.store.wait()
        assert it.holds()
        it.clock.advance(0.002)  # 9 ms after the first was sent, 2 ms after it was confirmed
        assert not it.holds()


def test_a_first_lease_counts_from_before_it_was_asked_for() -> None:
    with watched(asked_at=-0.009) as it:
        assert not it.holds()
        assert it.lost.wait(PATIENCE_SECONDS)
        assert it.store.seconds == []


@pytest.mark.parametrize("error", [LeaseLost("*"), ZeroDivisionError("a bug")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lease_that_is_not_renewed_any_more_is_lost(error: BaseException) -> None:
    with watched() as it:
        it.store.wait()
        assert it.holds()
        it.store.give(raising(error))
        assert it.lost.wait(PATIENCE_SECONDS)
        assert not it.holds()


def test_a_refused_renewal_is_tried_again_until_the_trust_ends() -> None:
    with watched() as it:
        it.store.wait()
        it.store.give(raising(StorageBusy("busy")))
        it.store.wait()
        assert it.holds()
        assert not it.lost.is_set()
        it.clock.advance(0.008)
        it.store.give(raising(StorageBusy("busy")))
        assert it.lost.wait(PATIENCE_SECONDS)
        assert not it.holds()


def test_a_stopped_lease_is_not_reported_as_lost() -> None:
    with watched() as it:
        it.store.wait()
        it.renewed()
    assert not it.lost.is_set()
