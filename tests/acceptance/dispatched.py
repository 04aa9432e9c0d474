"""Runs on Temporal: a server, stores beside it, functions that rest in every way, workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from perdure import App, Context, RunState, WorkerOptions, effect
from perdure.approvals import Approve
from perdure.engine.store import RunRow
from perdure.turn import Turn
from tests.acceptance.children import note, notes
from tests.acceptance.samples import STORAGES
from tests.services import OwnTemporal, own_temporal
from tests.storages import Places, app_at

WORKER = WorkerOptions(
    poll_seconds=0.01, sweep_seconds=0.05, linger_seconds=0.0, lease_seconds=3.0, drain_seconds=0.0
)
SECRET = "ship it to Ada Lovelace"


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnTemporal]:
    """Keep a server of Temporal."""
    with own_temporal(tmp_path_factory.mktemp("temporal") / "temporal.db") as server:
        yield server


@pytest.fixture(scope="module", params=STORAGES)
def places(request: pytest.FixtureRequest, temporal: OwnTemporal) -> Iterator[Places]:
    """Have stores on each kind of storage, and their runs on Temporal."""
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    places = Places(server, temporal.address)
    yield places
    places.drop()


def app_of(folder: Path, *versions: int, app: App | None = None, **options: Any) -> App:
    """Return an App with functions that are busy until `go` is there, sleep, ask and listen.

    Each acts once it may go on. `app` is one that is made otherwise.
    """
    app = app or app_at(folder, worker=WORKER, **options)

    @effect(support="idempotent")
    async def act(what: str) -> str:
        note(folder / "effects.log", what=what)
        return what

    async def hold(run_id: str) -> None:
        note(folder / "held.log", run=run_id)
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)

    async def busy(context: Context) -> str:
        await context.call(hold, context.run_id)
        return await context.call(act, context.run_id)

    async def asleep(context: Context, seconds: float) -> str:
        await context.sleep(seconds)
        return await context.call(act, context.run_id)

    async def asking(context: Context, what: str) -> str:
        answer = await context.approval("pay", {"for": what})
        assert isinstance(answer, Approve)
        await context.call(act, context.run_id)
        return f"{what}!"

    async def listening(context: Context) -> str:
        said = await context.wait_for("news")
        await context.call(act, context.run_id)
        return said

    async def answering(context: Context, turn: Turn) -> str:
        await context.call(act, context.run_id)
        await context.wait_for("news")
        return await turn.text()

    for version in versions or (1,):
        for function in (busy, asleep, asking, listening):
            app.run(version=version)(function)
        app.turn(version=version)(answering)
    return app


def serve(folder: Path) -> None:
    """Execute the runs of a folder until somebody kills this process."""

    async def main() -> None:
        async with app_of(folder):
            await asyncio.Event().wait()

    asyncio.run(main())


def acted(folder: Path) -> list[str]:
    """Return the runs that acted, as often as they did."""
    return sorted(line["what"] for line in notes(folder / "effects.log"))


async def stands(app: App, run_id: str, *states: RunState) -> RunRow:
    """Return a run as soon as it is in one of these states, or has ended."""
    while True:
        row = await app.store.read_run(run_id)
        if row is not None and (row.state in states or row.state.ended):
            assert row.state in states or not states, f"{run_id} is {row.state}"
            return row
        await asyncio.sleep(0.02)


def queue_of(folder: Path) -> str:
    """Return what the task queues of a folder's runs begin with."""
    return parse_qs(urlsplit((folder / "temporal.url").read_text()).query)["task_queue"][0]


def workflow_of(client: Client, folder: Path, run_id: str) -> WorkflowHandle[Any, Any]:
    """Return the workflow of a run."""
    return client.get_workflow_handle(f"{queue_of(folder)}/{run_id}")


async def closed(handle: WorkflowHandle[Any, Any]) -> str:
    """Return how a workflow ended, once it has."""
    while (found := (await handle.describe()).status) is WorkflowExecutionStatus.RUNNING:
        await asyncio.sleep(0.05)
    return "" if found is None else found.name


async def shows(handle: WorkflowHandle[Any, Any]) -> bytes:
    """Return what the server has of a workflow, as bytes."""
    history = await handle.fetch_history()
    return b"".join(event.SerializeToString() for event in history.events)
