"""An agent's turn that waits for days: one process after another serves it, each deployed anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart

from perdure import App, Context, WorkerOptions
from perdure.adapters.pydantic_ai import Durable
from perdure.approvals import Approve
from perdure.clock import SystemClock
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.acceptance.children import note

RUN_ID = "turn-1"
_ASKING = Reply(
    calls=[Call("refund", {"order": 1}), Call("look", {"order": 2}), Call("refund", {"order": 3})]
)
_WORKER = WorkerOptions(poll_seconds=0.005, sweep_seconds=0.01, linger_seconds=0.05)


class DaysLater(SystemClock):
    """The clock of a process that lives days after the test."""

    def __init__(self, days: float) -> None:
        self._seconds = days * 86400

    def now(self) -> float:
        """Return wall time, days later."""
        return super().now() + self._seconds


def _app_of(folder: Path, days: float, deployment: int) -> App:
    app = App(f"sqlite:///{folder}/runs.db", worker=_WORKER, clock=DaysLater(days))
    model = ScriptedModel([_ASKING, "Done."], log=folder / "model.log")
    agent = Agent(model, name="support", capabilities=[Durable()])

    @agent.tool_plain(requires_approval=True)
    def refund(order: int) -> str:
        note(folder / "effects.log", effect=f"refund {order}", deployment=deployment)
        return f"refunded {order}"

    @agent.tool_plain
    def look(order: int) -> str:
        note(folder / "effects.log", effect=f"look {order}", deployment=deployment)
        return f"looked {order}"

    @app.run(version=1)
    async def turn(context: Context) -> list[Any]:
        parts = [part for each in (await agent.run("Go.")).all_messages() for part in each.parts]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)]

    if deployment > 1:
        # What a deployment changes elsewhere: another function, and a newer one beside this.
        app.run(version=deployment, name="other")(turn)
        app.run(version=deployment, name="turn")(turn)
    return app


def serve(folder: Path, days: float, deployment: int) -> None:
    """Start the turn unless it is there, and serve runs until killed."""

    async def main() -> None:
        app = _app_of(folder, days, deployment)
        async with app:
            await app.start("turn", run_id=RUN_ID, version=1)
            note(folder / "served.log", deployment=deployment, days=days)
            await asyncio.Event().wait()

    asyncio.run(main())


def approve(folder: Path, days: float, item: str) -> None:
    """Approve one call, in a process that executes nothing."""

    async def main() -> None:
        app = _app_of(folder, days, 1)
        async with app.connect():
            await app.resolve(RUN_ID, item, Approve(), by="ada")

    asyncio.run(main())


def finish(folder: Path, days: float, deployment: int) -> None:
    """Serve the turn to its end, and note what it came to."""

    async def main() -> None:
        app = _app_of(folder, days, deployment)
        async with app:
            note(folder / "result.log", result=await app.handle(RUN_ID).result())

    asyncio.run(main())
