from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from perdure.demo.plan import Plan
from perdure.demo.report import Moment
from perdure.demo.shop import Shop
from perdure.effects.receipt import Receipt
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import RunRow

Visit: TypeAlias = tuple[str, str]
"""What somebody comes to the shop for: a kind, and a name."""

TOOLS: Final = ("look_up_order", "track_parcel", "refund_order")
CLOCK: Final[Visit] = ("mcp", "bank_day")
REFUND: Final[Visit] = ("tool", "refund_order")
LOOKUP: Final[Visit] = ("lookup", "find_refund")

Settler: TypeAlias = Literal["lookup", "repeat", "person"]
"""How doubt about an effect ends: its target is asked, it is sent again, or a person says."""


class Evidence(msgspec.Struct, frozen=True):
    """What is known of a turn: what the workers said, what the shop saw, what the store holds.

    `leaves` says that a run that is parked was to be left so.
    """

    plan: Plan
    leaves: bool
    shop: Shop
    run: RunRow
    attempts: Sequence[AttemptRow]
    operations: Sequence[OperationRow]
    receipts: Sequence[Receipt]

    @property
    def moments(self) -> Sequence[Moment]:
        """All that has happened."""
        return self.plan.moments

    @property
    def scripted(self) -> bool:
        """Whether it is known what the model says."""
        return self.plan.model is None

    @property
    def left(self) -> bool:
        """Whether the run is parked, as it was to be."""
        return self.leaves and bool(self.moments) and self.moments[-1].report.what == "parked"

    def last(self, what: str) -> Moment | None:
        """Return the last report of a kind."""
        return next((m for m in reversed(self.moments) if m.report.what == what), None)

    @property
    def pids(self) -> list[int]:
        """The processes that worked on the run, in order."""
        worked = (moment.pid for moment in self.moments if moment.report.what != "ready")
        return [*dict.fromkeys(worked)]

    @property
    def settler(self) -> Settler | None:
        """How the doubt about a refund ended; None where there was none, or still is."""
        recorded_in = {(row.step_id, row.sequence): row.generation for row in self.operations}
        for receipt in self.receipts:
            if receipt.decided_by is not None:
                return "person"
            if receipt.attempt > 1:
                return "repeat"
            generation = recorded_in.get((receipt.idempotency_key, receipt.ordinal))
            # Neither decided nor sent again, and yet recorded by a later attempt of the run.
            if generation is not None and generation > receipt.generation:
                return "lookup"
        return None

    def recorded(self, generation: int | None = None) -> Counter[Visit]:
        """Return what the journal says was done outside, in all or by one attempt."""
        return Counter(
            visit
            for operation in self.operations
            if generation in {None, operation.generation}
            and (visit := _visit_of(operation)) is not None
        )


def _visit_of(operation: OperationRow) -> Visit | None:
    """Return what an operation does outside, as the shop counts it."""
    name = operation.handler_id.rpartition(".")[2]
    match operation.kind:
        case "model_stream" | "model_request":
            return ("model", str(operation.sequence))
        case "tool_call" if name in TOOLS:
            return ("tool", name)
        case "mcp_request" if name == CLOCK[1]:
            return CLOCK
        case _:
            return None
