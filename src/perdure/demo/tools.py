from __future__ import annotations

from typing import Any, Final

from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import FunctionToolset

from perdure import OperationIdentity, SideEffectSupport, effect, operation
from perdure.demo.gate import Gate
from perdure.demo.report import Report
from perdure.demo.shop import Shop
from perdure.demo.story import refunded
from perdure.effects.answer import Answer, Landed, NotYet

_TIMEOUT_SECONDS: Final = 5.0


def build_tools(
    support: SideEffectSupport, shop: Shop, gate: Gate, *, asks_first: bool = False
) -> FunctionToolset[Shop]:
    """Return the tools of the agent: two that read, and one that pays money back.

    With `asks_first` nothing is paid before a person has said yes.
    """
    tools: FunctionToolset[Shop] = FunctionToolset(id="shop")

    @tools.tool
    @operation(read_only=True)
    def look_up_order(ctx: RunContext[Shop], order: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Look up what was sold and what was paid for it."""
        found = ctx.deps.find(order)
        return {"item": found[0], "paid_cents": found[1]} if found else {"error": "no such order"}

    @tools.tool
    @operation(read_only=True)
    def track_parcel(ctx: RunContext[Shop], order: str) -> str:  # pyright: ignore[reportUnusedFunction]
        """Ask where the parcel of an order is."""
        ctx.deps.visit("tool", "track_parcel")
        return f"the parcel of order {order} was delivered"

    @effect(support=support, target="shop", timeout_seconds=_TIMEOUT_SECONDS)
    async def refund_order(
        ctx: RunContext[Shop], order: str, cents: int, operation: OperationIdentity
    ) -> str:
        """Pay money back for an order."""
        key = operation.operation_key
        taken = None if support is SideEffectSupport.AT_LEAST_ONCE else key
        once = support is SideEffectSupport.IDEMPOTENT
        paid = ctx.deps.refund(order, cents, taken, once=once)
        gate.report(Report("paid" if paid else "dropped", key, cents))
        gate.effect_done()
        return refunded(order, cents)

    async def find_refund(operation: OperationIdentity) -> Answer:
        key = operation.operation_key
        found = shop.find_refund(key)
        if found is None:
            gate.report(Report("missed", key))
            return NotYet()
        gate.report(Report("landed", key, found[1]))
        return Landed(refunded(*found))

    if support is SideEffectSupport.OUTCOME_QUERYABLE:
        refund_order.lookup(find_refund)
    tools.tool(requires_approval=asks_first)(refund_order)
    return tools
