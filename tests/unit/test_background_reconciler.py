"""A worker asks about what is ambiguous by itself, and whoever is parked for it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationIdentity, effect, operation
from perdure.effects.answer import Landed, NeverWill, NotYet, Unknown
from perdure.errors import InvalidFunction, RunCancelled, RunNeedsAttention
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, in_time, run, sql

pytestmark = pytest.mark.usefixtures("storage")

RECEIPTS = "SELECT state, lookups, exhausted, residual_duplicate_risk FROM receipts"
SETTLED = "perdure_side_effect_reconciliation_succeeded_total"
GIVEN_UP = "perdure_side_effect_reconciliation_failed_total"


class Bank:
    """A target that never replies to its first charge; what it says when asked is scripted."""

    def __init__(self, *answers: Any, timeout_seconds: float | None = None) -> None:
        self.answers = list(answers)
        self.charged = 0
        self.reached = asyncio.Event()

        @effect(support="outcome_queryable", target="bank", timeout_seconds=timeout_seconds)
        async def charge(operation: OperationIdentity) -> str:
            self.charged += 1
            if self.charged == 1:
                self.reached.set()
                await asyncio.Event().wait()
            return f"charge {self.charged}"

        @charge.lookup
        async def find(operation: OperationIdentity) -> Any:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.charge = charge


class Office:
    """Workers on one file, by a clock that is turned for them."""

    def __init__(self, folder: Path, bank: Bank) -> None:
        self.folder = folder
        self.bank = bank
        self.clock = ManualClock()

    def app(self, *, knows: bool = True) -> App:
        effects = [self.bank.charge] if knows else []
        app = app_on(self.folder, clock=self.clock, lease_seconds=1e9, effects=effects)

        @app.run(version=1)
        async def pay(context: Context) -> str:
            return await context.call(self.bank.charge)

        return app

    async def cut_short(self, *, cancel: bool = False) -> None:
        """Let the first charge begin, and end the run or its worker."""
        async with self.app() as app:
            handle = await app.start("pay", run_id=RUN)
            await self.bank.reached.wait()
            if cancel:
                await handle.cancel()
                with pytest.raises(RunCancelled):
                    await handle.result()

    async def until(self, told: Callable[[], bool]) -> None:
        while not told():
            self.clock.advance(0.3)
            await asyncio.sleep(0.002)

    def state(self) -> str:
        ((state,),) = sql(self.folder, "SELECT state FROM runs")
        return state

    def receipt(self) -> tuple[Any, ...]:
        return next(iter(sql(self.folder, RECEIPTS)), ("none", 0, 0, 0))


@pytest.mark.parametrize(
    ("answer", "result", "charged"),
    [(Landed(("charge", 1)), ("charge", 1), 1), (NeverWill("lost"), "charge 2", 2)],
    ids=["landed", "never-will"],
)
def test_a_parked_run_goes_on_once_its_target_has_answered(
    tmp_path: Path, answer: Any, result: Any, charged: int
) -> None:
    # Without a time limit of its attempt, what the target has not seen yet may always come.
    office = Office(tmp_path, Bank(NotYet(), answer))

    async def main() -> None:
        async with office.app() as app:
            await office.until(lambda: not office.bank.answers)
            await office.until(lambda: office.state() == "completed")
            assert await app.handle(RUN).result() == result
            assert app.observer.counts[SETTLED] == 1

    run(office.cut_short())
    run(main())
    assert office.bank.charged == charged
    state, _, *flags = office.receipt()  # whether the run or the worker asks first is chance
    assert (state, *flags) == ("completed", 0, 0)


def test_a_worker_asks_for_runs_that_have_ended_if_it_was_told_how(tmp_path: Path) -> None:
    office = Office(tmp_path, Bank(Landed("charge 1")))

    async def look(*, knows: bool) -> None:
        async with office.app(knows=knows) as app:
            if knows:
                await office.until(lambda: office.receipt()[0] == "completed")
            for _ in range(20):
                office.clock.advance(0.3)
                await asyncio.sleep(0.002)
            assert app.observer.counts["perdure_operation_executed_total"] == 0

    run(office.cut_short(cancel=True))
    run(look(knows=False))
    assert office.receipt()[0] == "ambiguous"
    run(look(knows=True))
    assert office.receipt()[0] == "completed"
    assert (office.state(), office.bank.charged) == ("cancelled", 1)


@pytest.mark.parametrize("silent", [Unknown("down"), NotYet(), OSError("down")], ids=repr)
def test_a_target_that_cannot_say_is_asked_ever_later_and_then_no_more(
    tmp_path: Path, silent: Any
) -> None:
    office = Office(tmp_path, Bank(NotYet(), silent, silent, silent, Landed("never asked")))

    async def main() -> None:
        async with office.app() as app:
            await office.until(lambda: app.observer.counts[GIVEN_UP] == 1)
            for _ in range(20):
                office.clock.advance(10)
                await asyncio.sleep(0.002)
            assert app.observer.counts[GIVEN_UP] == 1

    run(office.cut_short())
    run(main())
    assert office.state() == "needs_attention"
    assert office.receipt() == ("ambiguous", 3, 1, 0)
    assert office.bank.answers[-1] == Landed("never asked")


def test_what_can_no_longer_arrive_is_ruled_out(tmp_path: Path) -> None:
    office = Office(tmp_path, Bank(NotYet(), NotYet(), timeout_seconds=30))

    async def look() -> None:
        async with office.app():
            await office.until(lambda: len(office.bank.answers) == 1)
            assert office.receipt()[0] == "ambiguous"
            await office.until(lambda: office.receipt()[0] == "failed")

    run(office.cut_short(cancel=True))
    run(look())
    # The time for a second question may be over before it is asked.
    assert (office.bank.charged, office.bank.answers[1:]) == (1, [])


def test_a_target_that_learns_of_a_charge_late_is_asked_after_the_run_was_parked(
    tmp_path: Path,
) -> None:
    office = Office(tmp_path, Bank(Unknown(), Unknown(), Landed("charge 1"), timeout_seconds=30))

    async def main() -> None:
        async with office.app() as app:
            handle = await app.start("pay", run_id=RUN)
            with pytest.raises(RunNeedsAttention, match="could not say"):
                await in_time(office.clock, handle.result())
            began = office.clock.monotonic()
            await office.until(lambda: office.state() == "completed")
            assert office.clock.monotonic() >= began + 19.0
            assert await handle.result() == "charge 1"

    run(office.cut_short())
    run(main())
    assert (office.bank.charged, office.bank.answers) == (1, [])


def test_an_app_is_given_effects_and_nothing_else() -> None:
    @operation(read_only=True)
    async def look() -> None: ...

    with pytest.raises(InvalidFunction, match="look is read_only"):
        App("sqlite:///runs.db", effects=[look])
