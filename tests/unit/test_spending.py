"""What records of model requests add up to, and the budgets that hold a run to it."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from perdure.errors import BudgetExceeded, InvalidOptions
from perdure.journal import (
    Binding,
    Failure,
    Handlers,
    Invocation,
    OperationKind,
    Outcome,
    Record,
    Success,
    Suspended,
    SuspensionReason,
)
from perdure.journal.budget import Budget, Meter
from perdure.journal.payloads import (
    CostSource,
    ModelRequest,
    RequestCost,
    RequestUsage,
    ResponseMessage,
    ResponseState,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolRequest,
    ToolResponse,
    encode_model_response,
)
from perdure.journal.spending import NOTHING, Spending, Spent, Usage, spent_on

Kind = OperationKind
MODEL = Kind.MODEL_REQUEST
USED = RequestUsage(
    input_tokens=70, output_tokens=7, cost=RequestCost(5), cost_source=CostSource.PROVIDER
)
CALLS = tuple(ToolCallPart(tool_call_id=f"c{n}", tool_name="t", args="{}") for n in range(2))
WHOLE = Usage(requests=1, input_tokens=70, output_tokens=7, cost_nano_usd=5)


def response(**members: Any) -> Outcome:
    members = {"parts": (TextPart(content="Hi."),), "usage": USED, **members}
    return Success(encode_model_response(ResponseMessage(**members)))


def elsewhere(**members: Any) -> Outcome:
    return Success(json.dumps({"parts": [{"part_kind": "text"}], **members}).encode())


@pytest.mark.parametrize(
    ("outcome", "attempts", "billed", "effective"),
    [
        (response(), 1, WHOLE, WHOLE),
        (response(), 3, WHOLE + Usage(requests=2, unmeasured=2), WHOLE),
        (response(parts=CALLS), 1, WHOLE + Usage(tool_calls=2), WHOLE + Usage(tool_calls=2)),
        (response(state=ResponseState.INTERRUPTED), 1, WHOLE, NOTHING),
        (
            response(usage=RequestUsage(input_tokens=0, output_tokens=0)),
            1,
            Usage(requests=1, unmeasured=1),
            Usage(requests=1, unmeasured=1),
        ),
        (
            elsewhere(usage={"input_tokens": 3, "cost": "0.0000000021", "details": {"x": 1}}),
            1,
            Usage(requests=1, input_tokens=3, cost_nano_usd=2),
            Usage(requests=1, input_tokens=3, cost_nano_usd=2),
        ),
        (
            elsewhere(usage={"unmeasured_requests": 1}, state="suspended"),
            1,
            Usage(requests=1, unmeasured=1),
            NOTHING,
        ),
        (Success(b"null"), 1, NOTHING, NOTHING),
        (Success(b'{"messages":[]}'), 1, NOTHING, NOTHING),
        (Failure("Busy"), 2, Usage(requests=2, unmeasured=2), NOTHING),
        (
            Failure("Cut", data_json=b'{"usage":{"input_tokens":9,"cost":{"nano_usd":4}}}'),
            2,
            Usage(requests=2, input_tokens=9, cost_nano_usd=4, unmeasured=1),
            NOTHING,
        ),
        (
            Failure(
                "Cut", data_json=b'{"responses":{"a":{"parts":[],"usage":{"output_tokens":2}}}}'
            ),
            1,
            Usage(requests=1, output_tokens=2),
            NOTHING,
        ),
        (Failure("Odd", data_json=b"[1]"), 1, Usage(requests=1, unmeasured=1), NOTHING),
        (
            Suspended(SuspensionReason.PROVIDER_RESUME, b"{}"),
            1,
            Usage(requests=1, unmeasured=1),
            NOTHING,
        ),
    ],
)
def test_an_outcome_was_billed_for_all_attempts_and_gave_what_the_last_one_did(
    outcome: Outcome, attempts: int, billed: Usage, effective: Usage
) -> None:
    assert spent_on(outcome, attempts) == Spent(billed, effective)


@pytest.mark.parametrize(
    ("cost", "nano"),
    [("0.25", 250_000_000), (0.5, 500_000_000), ("much", None), ([], None), ({"eur": 1}, None)],
)
def test_a_cost_that_nobody_understands_is_none(cost: Any, nano: int | None) -> None:
    assert spent_on(elsewhere(usage={"cost": cost})).billed.cost_nano_usd == nano


def test_records_count_once_and_other_runs_by_their_last_word() -> None:
    spending = Spending()
    for _ in range(2):
        spending.count("run-1/model.request/1", MODEL, response())
        spending.count("run-1/tool.call/1", Kind.TOOL_CALL, response())
    assert spending.spent == Spent(WHOLE, WHOLE)
    assert spending.knows("run-1/tool.call/1")
    for requests in (2, 5):
        spending.add_run("child", Spent(Usage(requests=requests), NOTHING))
    assert spending.spent == Spent(WHOLE + Usage(requests=5), WHOLE)


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (Budget(requests=2), "requests"),
        (Budget(input_tokens=140), "input_tokens"),
        (Budget(output_tokens=14), "output_tokens"),
        (Budget(total_tokens=154), "total_tokens"),
        (Budget(cost_usd=Decimal("0.00000001")), "cost_usd"),
        (Budget(requests=4, of="billed"), None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_request_that_would_go_over_is_refused_and_the_one_before_is_not(
    budget: Budget, name: str | None
) -> None:
    spending = Spending()
    budget.check(spending, MODEL)
    spending.count("1", MODEL, response())
    budget.check(spending, MODEL)
    spending.count("2", MODEL, response())
    if name is None:
        budget.check(spending, MODEL)
        return
    with pytest.raises(BudgetExceeded, match=f"allows {name}=") as caught:
        budget.check(spending, MODEL)
    assert caught.value.name == name
    assert caught.value.used >= caught.value.limit
    budget.check(spending, Kind.TOOL_CALL)
    budget.check(spending, Kind.RETRY_DELAY)


def test_what_is_counted_is_what_the_budget_is_of() -> None:
    spending = Spending()
    spending.count("1", MODEL, response(), attempts=3)
    Budget(requests=2, of="effective").check(spending, MODEL)
    with pytest.raises(BudgetExceeded):
        Budget(requests=2).check(spending, MODEL)


def test_calls_that_a_response_asks_for_are_made_all_or_not_at_all() -> None:
    spending, meter = Spending(), Budget(tool_calls=3)
    spending.count("1", MODEL, response(parts=CALLS))
    meter.check(spending, Kind.TOOL_CALL)
    spending.count("2", MODEL, response(parts=CALLS))
    for kind in (Kind.TOOL_CALL, Kind.MCP_REQUEST):
        with pytest.raises(BudgetExceeded, match="tool_calls=3, and 4"):
            meter.check(spending, kind)
    meter.check(spending, MODEL)


def test_requests_under_way_count_until_they_are_over() -> None:
    meter = Meter(Budget(requests=2))
    with meter.admitted("1", MODEL), meter.admitted("2", Kind.MODEL_STREAM):
        with pytest.raises(BudgetExceeded), meter.admitted("3", MODEL):
            raise AssertionError
        meter.count("1", MODEL, response())
    # The second came to nothing, so there is one left.
    with meter.admitted("2", MODEL):
        meter.count("2", MODEL, response())
    with pytest.raises(BudgetExceeded), meter.admitted("3", MODEL):
        raise AssertionError
    with meter.admitted("1", MODEL):
        pass  # what is recorded is let pass


def test_a_part_of_the_code_may_have_a_budget_of_its_own() -> None:
    meter = Meter(Budget(requests=5))
    inner = meter.within(Budget(requests=1))
    with inner.admitted("1", MODEL):
        inner.count("1", MODEL, response())
    with pytest.raises(BudgetExceeded, match="requests=1"), inner.admitted("2", MODEL):
        raise AssertionError
    with meter.admitted("2", MODEL):
        assert meter.spending.under_way == 1


@pytest.mark.parametrize(
    "limits",
    [
        {"requests": -1},
        {"requests": True},
        {"tool_calls": 1.0},
        {"cost_usd": 0.5},
        {"cost_usd": Decimal("NaN")},
        {"of": "guessed"},
    ],
    ids=str,
)
def test_a_limit_that_is_none_is_refused(limits: Any) -> None:
    with pytest.raises(InvalidOptions):
        Budget(**limits)


class LocalRuntime:
    def __init__(self, handlers: Handlers) -> None:
        self.records: dict[str, Record] = {}
        self.handlers = handlers

    async def execute(self, invocation: Invocation) -> Record:
        key = invocation.stable_key
        if key not in self.records:
            worker = self.handlers.lookup(invocation.kind, invocation.handler_id)
            self.records[key] = Record(invocation, await worker(invocation))
        return self.records[key]


def test_a_binding_refuses_at_the_same_place_on_every_replay() -> None:
    handlers = Handlers()

    @handlers.model_request("work")
    async def model(request: ModelRequest) -> ResponseMessage:
        return ResponseMessage(parts=CALLS[:1], usage=USED)

    @handlers.tool_call("work")
    async def tool(request: ToolRequest) -> ToolResponse:
        return ToolResponse(content="ok")

    runtime = LocalRuntime(handlers)

    async def code(budget: Budget) -> int:
        ids = {MODEL: "work", Kind.TOOL_CALL: "work"}
        binding = Binding(run_id="run-1", runtime=runtime, handler_ids=ids, meter=Meter(budget))
        call = ToolRequest(
            call=ToolCall(id="c0", name="t", arguments_json="{}"), arguments_json="{}"
        )
        number = 0
        try:
            while number := number + 1:
                await binding.model_request("model.request", number, ModelRequest(messages=()))
                await binding.tool_call("tool.call", number, call)
        except BudgetExceeded:
            pass
        return number

    for budget, refused_at, records in [
        (Budget(requests=3), 4, 6),
        (Budget(requests=3), 4, 6),
        (Budget(tool_calls=4), 5, 9),
        (Budget(tool_calls=4), 5, 9),
        (Budget(total_tokens=77 * 5), 6, 10),
    ]:
        assert asyncio.run(code(budget)) == refused_at
        assert len(runtime.records) == records
