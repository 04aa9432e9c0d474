"""A turn of hundreds of large model requests on Temporal, which then waits for days."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.usage import UsageLimits
from temporalio.client import Client

from perdure import App, Context, RunState
from perdure.adapters.pydantic_ai import Durable
from perdure.approvals import Approve
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.acceptance.children import notes
from tests.acceptance.dispatched import (
    WORKER,
    closed,
    places,
    shows,
    stands,
    temporal,
    workflow_of,
)
from tests.acceptance.samples import LONG
from tests.acceptance.waiting_turn import DaysLater
from tests.harness import run
from tests.services import OwnTemporal
from tests.storages import app_at, on_server

__all__ = ["places", "temporal"]

pytestmark = LONG

_REQUESTS = 300
_CONTEXT = "x" * 200_000
_SCRIPT = [
    *(Reply(calls=[Call("look")]) for _ in range(_REQUESTS - 1)),
    Reply(calls=[Call("refund")]),
    "Done.",
]


def _app_of(folder: Path, days: float) -> App:
    clock = None if on_server(folder) else DaysLater(days)  # a server has a clock of its own
    app = app_at(folder, worker=WORKER, clock=clock)
    model = ScriptedModel(_SCRIPT, log=folder / "model.log")
    agent = Agent(model, name="support", capabilities=[Durable()])

    @agent.tool_plain
    def look() -> str:
        return "looked"

    @agent.tool_plain(requires_approval=True)
    def refund() -> str:
        return "refunded"

    @app.run(version=1)
    async def turn(context: Context, prompt: str) -> str:
        return (await agent.run(prompt, usage_limits=UsageLimits(request_limit=None))).output

    return app


def test_a_turn_of_300_large_requests_and_three_days_is_a_short_history(
    folder: Path, temporal: OwnTemporal
) -> None:
    async def main() -> None:
        client = await Client.connect(temporal.address)
        async with _app_of(folder, 0) as app:
            await app.start("turn", _CONTEXT, run_id="turn")
            await stands(app, "turn", RunState.SUSPENDED)
        assert len(notes(folder / "model.log")) == _REQUESTS
        async with _app_of(folder, 3).connect() as app:
            (item,) = await app.approvals("turn")
            await app.resolve("turn", item.item_id, Approve(), by="ada")
        async with _app_of(folder, 3) as app:
            assert await app.handle("turn").result() == "Done."
            handle = workflow_of(client, folder, "turn")
            assert await closed(handle) == "COMPLETED"
        assert len(notes(folder / "model.log")) == _REQUESTS + 1
        events = (await handle.fetch_history()).events
        print(f"{len(events)} events, {len(await shows(handle))} bytes")
        assert len(events) < 50
        assert len(await shows(handle)) < 20_000

    run(main())
