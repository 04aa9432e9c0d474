"""Plain Python, no framework: an order is charged and shipped, and the process may die anywhere.

Run it with `uv run python examples/checkout.py`. Kill it while it runs and run it again: it goes
on after the last recorded step, or waits for a person if it was killed in the middle of `ship`.
"""

from __future__ import annotations

import asyncio

from perdure import App, Context, OperationIdentity, RetryPolicy, effect

app = App("sqlite:///checkout.db")


@effect(support="idempotent", target="bank", retry=RetryPolicy(attempts=5))
async def charge(operation: OperationIdentity, order: str, cents: int) -> str:
    """Stand in for a payment provider, which drops a repeated key itself."""
    print(f"charging {order}: {cents} cents, key {operation.operation_key}")
    await asyncio.sleep(1)
    return f"receipt-{order}"


def ship(order: str) -> str:
    """Stand in for a warehouse; not async, so it runs in a thread.

    It declares nothing, so a crash in the middle of it leaves the run to a person.
    """
    print(f"shipping {order}")
    return f"parcel-{order}"


@effect(target="mail", on_ambiguous="retry")
async def tell(address: str, text: str) -> None:
    """Stand in for a mail server: one mail too many does no harm."""
    print(f"to {address}: {text}")


@app.run(version=1)
async def checkout(context: Context, order: str) -> dict[str, str]:
    """Charge first, then ship and tell the buyer at the same time."""
    receipt = await context.call(charge, order, 1999)
    await context.sleep(1)
    parcel, _ = await asyncio.gather(
        context.call(ship, order),
        context.call(tell, "buyer@example.com", f"charged, {receipt}"),
    )
    return {"receipt": receipt, "parcel": parcel}


if __name__ == "__main__":
    print(app.run_sync(checkout, "order-7", run_id="checkout-order-7"))
