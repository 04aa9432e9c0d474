"""A Temporal activity that charges a card once, however often Temporal tries it.

Run it with `uv run python examples/guard_temporal.py`, which starts a development server of its own
and gets its program first if need be. In earnest: `await Client.connect("temporal:7233")`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from perdure import (
        EffectAmbiguous,
        EffectPolicy,
        EffectRejected,
        OperationIdentity,
        ReceiptStore,
        SideEffectSupport,
        guard,
    )

store = ReceiptStore.open("sqlite:///guard.db")

# The provider drops a charge whose key it has seen, so doubt is settled by sending it again.
policy = EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=10.0)


async def charge(identity: OperationIdentity) -> dict[str, str]:
    """Stand in for a payment provider."""
    print(f"charging {identity.run_id} with Idempotency-Key {identity.operation_key}")
    return {"receipt": f"r-{identity.run_id}"}


@activity.defn
async def pay(cents: int) -> str:
    info = activity.info()
    assert info.workflow_id is not None
    # Not the attempt: its reply may be all that was lost. Nor the run, which a reset replaces.
    identity = OperationIdentity(info.workflow_id, info.activity_id, "bank")
    arguments = {"cents": cents}
    try:
        paid = await guard(store, identity, charge, policy=policy, arguments=arguments)
    except (EffectRejected, EffectAmbiguous) as error:
        # Neither gets better by trying: the first is an answer, the second is for a person.
        name = type(error).__name__
        raise ApplicationError(str(error), type=name, non_retryable=True) from error
    # Whatever else is raised is tried again, EffectInProgress too.
    return paid["receipt"]


@workflow.defn
class Checkout:
    @workflow.run
    async def run(self, cents: int) -> str:
        # A name of its own: the numbers that Temporal gives move when the code changes.
        return await workflow.execute_activity(
            pay, cents, activity_id="charge", start_to_close_timeout=timedelta(seconds=30)
        )


async def check_out(client: Client, invoice: str) -> str:
    async with store, Worker(client, task_queue="shop", workflows=[Checkout], activities=[pay]):
        return await client.execute_workflow(Checkout.run, 1999, id=invoice, task_queue="shop")


async def main() -> None:
    async with await WorkflowEnvironment.start_local() as server:
        print("paid:", await check_out(server.client, "invoice-2041"))


if __name__ == "__main__":
    asyncio.run(main())
