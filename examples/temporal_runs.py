"""An agent's run on Temporal: the same code as on one machine, with another URL.

Run it with `uv run python examples/temporal_runs.py`, which starts a development server of its own
and gets its program first if need be. In earnest, workers and whoever starts runs are programs of
their own, with `App("temporal://temporal:7233/default?task_queue=shop", store="postgresql://…")`.
"""

from __future__ import annotations

import asyncio
import tempfile

from temporalio.testing import WorkflowEnvironment

from perdure import App, Context, effect
from perdure.approvals import Approve


def shop_at(url: str, store: str) -> App:
    """Return the App; what it does is the same wherever its runs are executed."""
    app = App(url, store=store)

    @effect(support="idempotent", target="bank")
    async def pay_back(order: str, cents: int) -> str:
        return f"{cents} cents for {order}"

    @app.run(version=1)
    async def refund(context: Context, order: str) -> str:
        answer = await context.approval("refund", {"order": order, "cents": 1999})
        if not isinstance(answer, Approve):
            return "refused"
        return await context.call(pay_back, order, 1999)

    return app


async def refund_on(url: str, store: str) -> str:
    """Start a refund, let its worker go while it waits, and approve it with another one there."""
    async with shop_at(url, store) as app:
        handle = await app.start("refund", "order-7", run_id="refund-order-7")
        while not await app.approvals(handle.run_id):  # noqa: ASYNC110 - anybody may look
            await asyncio.sleep(0.1)
    async with shop_at(url, store) as app:
        await app.resolve("refund-order-7", "approval.1", Approve(), by="ada")
        return await app.handle("refund-order-7").result()


async def main() -> None:
    async with await WorkflowEnvironment.start_local() as server:
        host = server.client.service_client.config.target_host
        with tempfile.TemporaryDirectory() as folder:
            url = f"temporal://{host}/default?task_queue=shop"
            print(await refund_on(url, f"sqlite:///{folder}/runs.db"))


if __name__ == "__main__":
    asyncio.run(main())
