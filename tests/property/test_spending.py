"""A budget holds whatever happens, and a replay is refused where the execution before it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BudgetExceeded
from perdure.journal import Failure, OperationKind, Outcome, Success
from perdure.journal.budget import Budget, Meter
from perdure.journal.payloads import (
    RequestCost,
    RequestUsage,
    ResponseMessage,
    ResponseState,
    TextPart,
    encode_model_response,
)
from perdure.journal.spending import Spending, Spent, spent_on

MODEL = OperationKind.MODEL_REQUEST

counts = st.integers(0, 100)
responses = st.builds(
    lambda read, wrote, cost, state: Success(
        encode_model_response(
            ResponseMessage(
                parts=(TextPart(content="Hi."),),
                usage=RequestUsage(
                    input_tokens=read,
                    output_tokens=wrote,
                    cost=None if cost is None else RequestCost(cost),
                ),
                state=state,
            )
        )
    ),
    counts,
    counts,
    st.none() | counts,
    st.sampled_from(ResponseState),
)
outcomes: st.SearchStrategy[Outcome] = responses | st.just(Failure("Busy"))
limits = st.none() | st.integers(0, 8)
budgets = st.builds(
    Budget,
    requests=limits,
    input_tokens=st.none() | st.integers(0, 400),
    total_tokens=st.none() | st.integers(0, 800),
    of=st.sampled_from(["billed", "effective"]),
)
attempted = st.lists(st.tuples(outcomes, st.integers(1, 3)), max_size=8)


@given(attempted, st.randoms())
def test_the_order_of_records_says_nothing(
    records: list[tuple[Outcome, int]], random: Random
) -> None:
    numbered = [*enumerate(records)]
    totals: list[Spent] = []
    for _ in range(2):
        spending = Spending()
        for number, (outcome, attempts) in numbered + numbered[:2]:
            spending.count(str(number), MODEL, outcome, attempts)
        totals.append(spending.spent)
        random.shuffle(numbered)
    whole = sum((spent_on(*record) for record in records), Spent())
    assert totals == [whole, whole]
    for name in ("requests", "input_tokens", "output_tokens", "tool_calls"):
        assert getattr(whole.effective, name) <= getattr(whole.billed, name)
    assert (whole.effective.cost_nano_usd or 0) <= (whole.billed.cost_nano_usd or 0)
    assert whole.billed.requests == sum(attempts for _, attempts in records)


@dataclass
class Turn:
    """Code that asks for one request after another, under a journal that outlives it."""

    plan: list[tuple[Outcome, int]]
    budget: Budget
    journal: dict[str, tuple[Outcome, int]] = field(default_factory=dict)

    def execute(self, stops_after: int) -> int | None:
        """Return at which request it was refused, or None; it may be cut off before."""
        meter = Meter(self.budget)
        for key, record in self.journal.items():
            meter.count(key, MODEL, *record)
        for number, planned in enumerate(self.plan):
            key = str(number)
            try:
                with meter.admitted(key, MODEL):
                    if number == stops_after:
                        return None
                    record = self.journal.setdefault(key, planned)
                    meter.count(key, MODEL, *record)
            except BudgetExceeded:
                return number
        return len(self.plan)


@given(attempted, budgets, st.lists(st.integers(0, 8), max_size=3))
def test_a_turn_is_refused_at_the_same_place_however_often_it_is_cut_off(
    plan: list[tuple[Outcome, int]], budget: Budget, cuts: list[int]
) -> None:
    straight = Turn(plan, budget)
    refused_at = straight.execute(stops_after=-1)
    cut = Turn(plan, budget)
    for stops_after in cuts:
        assert cut.execute(stops_after) in {None, refused_at}
    assert [cut.execute(-1), cut.execute(-1)] == [refused_at, refused_at]
    assert cut.journal == straight.journal
    # Every request that was made had something left when it began.
    spent = Spending()
    for key, record in cut.journal.items():
        budget.check(spent, MODEL)
        spent.count(key, MODEL, *record)
