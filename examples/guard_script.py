"""A plain script that charges a card once, however often it is started and wherever it is killed.

Run it with `uv run python examples/guard_script.py`. It works the same inside a queue's task or
another engine's activity: the store and `guard` are all there is to it.
"""

from __future__ import annotations

import asyncio

from perdure import EffectPolicy, OperationIdentity, ReceiptStore, SideEffectSupport, guard

store = ReceiptStore.open("sqlite:///guard.db")

# The provider drops a charge whose key it has seen, so doubt is settled by sending it again.
policy = EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=30.0)


async def charge(identity: OperationIdentity) -> dict[str, str]:
    """Stand in for a payment provider."""
    print(f"charging {identity.run_id} with Idempotency-Key {identity.operation_key}")
    await asyncio.sleep(1)
    return {"receipt": f"r-{identity.run_id}"}


async def main() -> None:
    identity = OperationIdentity("invoice-2041", "charge", "bank")
    async with store:
        result = await guard(store, identity, charge, policy=policy, arguments={"cents": 1999})
    print(f"paid: {result['receipt']}; start it again, and nothing is charged")


asyncio.run(main())
