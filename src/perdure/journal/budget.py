from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal
from typing import Final, Literal

import msgspec

from perdure.errors import BudgetExceeded, InvalidOptions
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Outcome
from perdure.journal.spending import MODEL_KINDS, Spending, Usage

_TOOL_KINDS: Final = frozenset({OperationKind.TOOL_CALL, OperationKind.MCP_REQUEST})
_NANO: Final = 1_000_000_000


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use; None is no limit.

    A request begins while there is one left, and tokens and money are not used up: how many it
    uses is known only afterwards. Tool calls are made while the responses have not asked for more.
    `of` says what is counted: what was billed, with failed attempts, or what was effective. Raises
    `InvalidOptions` for a limit that is negative, or of another type.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    tool_calls: int | None = None
    cost_usd: Decimal | None = None
    of: Literal["billed", "effective"] = "billed"

    def __post_init__(self) -> None:
        if self.of not in {"billed", "effective"}:
            raise InvalidOptions(f"a budget is of 'billed' or 'effective', not {self.of!r}")
        for name in self.__struct_fields__[:-1]:
            limit = getattr(self, name)
            kind = Decimal if name == "cost_usd" else int
            if limit is None or (type(limit) is kind and Decimal(limit).is_finite() and limit >= 0):
                continue
            raise InvalidOptions(
                f"{name} of a budget is {kind.__name__} from 0, or None, not {limit!r}"
            )

    def check(self, spending: Spending, kind: OperationKind) -> None:
        """Raise `BudgetExceeded` if one more operation of a kind would go over."""
        used: Usage = getattr(spending.spent, self.of)
        calls = used.tool_calls
        if kind in _TOOL_KINDS and self.tool_calls is not None and calls > self.tool_calls:
            raise BudgetExceeded("tool_calls", limit=self.tool_calls, used=calls)
        if kind not in MODEL_KINDS:
            return
        _check("requests", self.requests, used.requests + spending.under_way)
        _check("input_tokens", self.input_tokens, used.input_tokens)
        _check("output_tokens", self.output_tokens, used.output_tokens)
        _check("total_tokens", self.total_tokens, used.total_tokens)
        _check("cost_usd", self.cost_usd, Decimal(used.cost_nano_usd or 0) / _NANO)


def _check(name: str, limit: int | Decimal | None, used: int | Decimal) -> None:
    if limit is not None and used >= limit:
        raise BudgetExceeded(name, limit=limit, used=used)


class Meter:
    """Holds the operations of one run to its budgets, by what the run has spent.

    An operation that is known to be recorded is let pass, so that a replay comes as far as the
    execution before it. Without a `spending`, what was spent is what the meter is told.
    """

    def __init__(self, *budgets: Budget, spending: Spending | None = None) -> None:
        self.budgets = budgets
        self.spending = Spending() if spending is None else spending

    def within(self, budget: Budget) -> Meter:
        """Return a meter of the same run with one more budget, for a part of its code."""
        return Meter(*self.budgets, budget, spending=self.spending)

    @contextmanager
    def admitted(self, key: str, kind: OperationKind) -> Generator[None]:
        """Hold an operation as under way, if every budget has room; raise `BudgetExceeded`."""
        if not self.spending.knows(key):
            for budget in self.budgets:
                budget.check(self.spending, kind)
        with self.spending.begun(key, kind):
            yield

    def count(self, key: str, kind: OperationKind, outcome: Outcome, attempts: int = 1) -> None:
        """Count what an operation came to, once; under `admitted`, so that none slips between."""
        self.spending.count(key, kind, outcome, attempts)
