"""Write the histories of runs that later releases replay.

`python -m tests.acceptance.temporal_run_histories`. A history that is there is kept, since it is
what a server holds of runs under way; give one that a new release writes otherwise a name of its
own.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure import App, Context, RunCancelled, RunFailed, RunState, WorkerOptions
from tests.services import connected

HISTORIES = Path(__file__).parents[1] / "vectors" / "temporal_runs"
QUEUE = "agents"

_TRACE = re.compile(r'"stackTrace": "(?:[^"\\]|\\.)*"')
"""Where a machine keeps its files is in there."""


def app_of(address: str, folder: str) -> App:
    """Return an App whose runs sleep, listen and fail."""

    async def connect() -> Client:
        return await Client.connect(address, identity="client")

    app = App(
        f"temporal://{address}/default?task_queue={QUEUE}&heartbeat_seconds=1",
        store=f"sqlite:///{folder}/runs.db",
        temporal=connect,
        worker=WorkerOptions(linger_seconds=0.0),
    )

    @app.run(version=1)
    async def wait(context: Context) -> Any:
        await context.sleep(1.5)
        return await context.wait_for("news")

    @app.run(version=1)
    async def fail(context: Context) -> None:
        raise ValueError

    @app.run(version=1)
    async def work(context: Context) -> None:
        await asyncio.Event().wait()

    return app


async def record() -> None:
    """Execute one run of each kind, and write what the server has of it."""
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as client, app_of(_address(client), folder) as app:
            waiting = await app.start("wait", run_id="waits")
            await _stands(app, "waits", RunState.SUSPENDED)
            await app.send("waits", "news", 7)
            assert await waiting.result() == 7
            await _write(client, "waits")
            failing = await app.start("fail", run_id="fails")
            for _ in range(2):
                try:
                    await failing.result()
                except RunFailed:
                    await _ended(client, "fails")
                    await app.resume("fails")
            await _write(client, "fails")
            for name, function, state in (
                ("cancelled_while_it_waits", "wait", RunState.SUSPENDED),
                ("cancelled_while_it_works", "work", RunState.RUNNING),
            ):
                cancelled = await app.start(function, run_id=name)
                await _stands(app, name, state)
                await app.cancel(name)
                try:
                    await cancelled.result()
                except RunCancelled:
                    await _write(client, name)


def _address(client: Client) -> str:
    return str(client.service_client.config.target_host)


async def _stands(app: App, run_id: str, state: RunState) -> None:
    while (await app.find(run_id)).state is not state:
        await asyncio.sleep(0.01)


async def _ended(client: Client, run_id: str) -> None:
    while (await client.get_workflow_handle(f"{QUEUE}/{run_id}").describe()).close_time is None:
        await asyncio.sleep(0.01)


async def _write(client: Client, run_id: str) -> None:
    await _ended(client, run_id)
    path = HISTORIES / f"{run_id}.history.json"
    if not path.exists():
        history = await client.get_workflow_handle(f"{QUEUE}/{run_id}").fetch_history()
        path.write_text(_TRACE.sub('"stackTrace": ""', history.to_json()) + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(record())
