"""A Celery task that charges a card once, however often its message is delivered or published.

Run it with `uv run python examples/guard_celery.py`: a worker and its broker live in the memory of
this process. In earnest, set the broker's URL and start `celery -A guard_celery worker`; each of
its processes opens the receipts for itself.
"""

from __future__ import annotations

from celery import Celery
from celery.contrib.testing.worker import start_worker

from perdure import (
    EffectInProgress,
    EffectNotSent,
    EffectPolicy,
    OperationIdentity,
    ReceiptStore,
    SideEffectSupport,
    StorageError,
    guard_sync,
)

app = Celery("shop", broker="memory://", backend="cache+memory://")
store = ReceiptStore.open("sqlite:///guard.db")

# The provider drops a charge whose key it has seen, so doubt is settled by sending it again.
policy = EffectPolicy(support=SideEffectSupport.IDEMPOTENT, timeout_seconds=30.0)


def charge(identity: OperationIdentity) -> dict[str, str]:
    """Stand in for a payment provider; a client's timeout would be shorter than the policy's."""
    print(f"charging {identity.run_id} with Idempotency-Key {identity.operation_key}")
    return {"receipt": f"r-{identity.run_id}"}


@app.task(
    name="pay",
    acks_late=True,  # a worker that dies has not acknowledged, and another gets the message
    reject_on_worker_lost=True,
    # Worth another try. A refusal is not, and what nobody knows is for a person.
    autoretry_for=(EffectInProgress, EffectNotSent, StorageError),
    retry_backoff=True,
    max_retries=10,
)
def pay(invoice: str, cents: int) -> str:
    # The invoice, and not the id of the task: who publishes it again, because the first reply was
    # lost or by hand, gets another id for the same charge.
    identity = OperationIdentity(invoice, "charge", "bank")
    arguments = {"cents": cents}
    return guard_sync(store, identity, charge, policy=policy, arguments=arguments)["receipt"]


def main() -> None:
    worker = start_worker(app, perform_ping_check=False)
    with store, worker:  # pyright: ignore[reportGeneralTypeIssues] - it is one
        for _ in range(2):
            published = app.send_task("pay", ["invoice-2041", 1999])
            print(f"paid: {published.get(timeout=30)}; publish it again, and nothing is charged")


if __name__ == "__main__":
    main()
