from __future__ import annotations

import asyncio
import time
from pathlib import Path

import perdure
from benchmarks.child import say
from benchmarks.ledger import Ledger
from benchmarks.soak.target import SETTLE_SECONDS, ask
from perdure import App, Context, OperationIdentity, WorkerOptions, effect
from perdure.effects.answer import Answer, Landed, NotYet

EFFECTS = 4
"""How many effects a run applies, each once."""

_TIMEOUT_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


def app_of(url: str, *, concurrency: int = 1, port: int = 0, ledger: Ledger | None = None) -> App:
    """Return the App of the soak; without a ledger, for those who only start runs."""
    options = WorkerOptions(concurrency=concurrency, reconcile_seconds=0.25)
    app = App(url, worker=options)

    async def apply(key: str, *, drops_repeats: bool) -> bool:
        request = {"key": key, "drops_repeats": drops_repeats, "sent_at": time.monotonic()}
        return (await ask(port, {"do": "apply", **request}))["applied"]

    @effect(support="idempotent", target="bank", timeout_seconds=_TIMEOUT_SECONDS)
    async def pay(operation: OperationIdentity, run_id: str) -> bool:
        return await apply(operation.operation_key, drops_repeats=True)

    @effect(
        support="outcome_queryable",
        target="shop",
        timeout_seconds=_TIMEOUT_SECONDS,
        settle_seconds=SETTLE_SECONDS,
    )
    async def order(operation: OperationIdentity, run_id: str) -> bool:
        return await apply(operation.operation_key, drops_repeats=False)

    @order.lookup
    async def ordered(identity: OperationIdentity) -> Answer:
        reply = await ask(port, {"do": "look", "key": identity.operation_key})
        return Landed(True) if reply["applied"] else NotYet()

    @perdure.operation(read_only=True)
    async def look(name: str) -> str:
        assert ledger is not None
        ledger.write("called", name)
        return name

    async def looked(context: Context, number: int) -> None:
        assert ledger is not None
        name = await context.call(look, f"{context.run_id}.{number}")
        ledger.write("done", name)

    @app.run(version=1)
    async def shopping(context: Context) -> int:
        await looked(context, 0)
        applied = int(await context.call(pay, context.run_id))
        await context.sleep(_PAUSE_SECONDS)
        applied += int(await context.call(order, context.run_id))
        await looked(context, 1)
        both = (context.call(pay, context.run_id), context.call(order, context.run_id))
        return applied + sum(map(int, await asyncio.gather(*both)))

    return app


def child(url: str, port: str, ledger: str, concurrency: str) -> None:
    """Work until killed."""
    app = app_of(url, concurrency=int(concurrency), port=int(port), ledger=Ledger(Path(ledger)))

    async def main() -> None:
        async with app:
            say("ready")
            await asyncio.Event().wait()

    asyncio.run(main())
