"""Runs on Temporal that people, operators, outages and deployments meet on their way."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from perdure import App, RunState
from perdure.approvals import Approve
from perdure.encryption import Keyring
from perdure.runtimes.temporal import payload_codec
from tests.acceptance.children import notes, running
from tests.acceptance.dispatched import (
    SECRET,
    acted,
    app_of,
    closed,
    places,
    queue_of,
    serve,
    shows,
    stands,
    temporal,
    workflow_of,
)
from tests.acceptance.samples import LONG
from tests.harness import run
from tests.services import OwnTemporal
from tests.storages import url_of
from tests.turning import begun

__all__ = ["places", "temporal"]

pytestmark = LONG

RESTING = (RunState.SLEEPING, RunState.SUSPENDED)
LATE_SECONDS = 4.0


async def _begin(app: App, folder: Path, kind: str, run_id: str, seconds: float = 3600.0) -> None:
    """Start a run and wait until it is busy, sleeps or waits, or is over on a slow machine."""
    given = {"asleep": (seconds,), "asking": (SECRET,)}.get(kind, ())
    late = LATE_SECONDS if run_id.startswith("late") else None
    await app.start(kind, *given, run_id=run_id, version=1, deadline_seconds=late)
    while True:
        row = await app.store.read_run(run_id)
        assert row is not None
        if row.state in RESTING or row.state.ended or notes(folder / "held.log", run=run_id):
            return
        await asyncio.sleep(0.02)


def test_whoever_asks_for_its_end_ends_a_run(folder: Path, temporal: OwnTemporal) -> None:
    async def main() -> None:
        client = await Client.connect(temporal.address)
        ways: dict[str, Callable[[App, str], Awaitable[object]]] = {
            "asked": lambda app, name: app.cancel(name),
            "operated": lambda app, name: workflow_of(client, folder, name).cancel(),
            "late": stands,
        }
        ends = {
            "asked": ("CANCELED", RunState.CANCELLED, None),
            "operated": ("CANCELED", RunState.CANCELLED, None),
            "late": ("FAILED", RunState.FAILED, "DeadlineExceeded"),
        }

        async def end(way: str, kind: str) -> None:
            name = f"{way}-{kind}"
            await _begin(app, folder, kind, name)
            await ways[way](app, name)
            status = await closed(workflow_of(client, folder, name))
            row = await stands(app, name)
            code = row.problem.code if row.problem else None
            assert (status, row.state, code) == ends[way], name

        async with app_of(folder) as app, asyncio.TaskGroup() as ending:
            for way in ways:
                for kind in ("busy", "asleep", "asking"):
                    ending.create_task(end(way, kind))
        assert acted(folder) == []

    run(main())


def test_a_cancellation_is_not_lost_with_the_worker_that_died(
    folder: Path, temporal: OwnTemporal
) -> None:
    """No attempt follows one of a cancelled activity: its workflow has to see to that."""

    async def main() -> None:
        client = await Client.connect(temporal.address)
        with running(folder, serve, folder) as child:
            async with app_of(folder).connect() as app:
                for run_id in ("operated", "asked"):
                    await _begin(app, folder, "busy", run_id)
                child.kill()
                await workflow_of(client, folder, "operated").cancel()
                await app.cancel("asked")
        async with app_of(folder) as app:
            for run_id in ("operated", "asked"):
                assert (await stands(app, run_id)).state is RunState.CANCELLED
                assert await closed(workflow_of(client, folder, run_id)) == "CANCELED"
        assert acted(folder) == []

    run(main())


def test_a_terminated_workflow_takes_no_run_with_it(folder: Path, temporal: OwnTemporal) -> None:
    async def main() -> None:
        client = await Client.connect(temporal.address)
        kinds = ("busy", "asleep", "asking")
        async with app_of(folder).connect() as app:
            await app.start("listening", run_id="pending")
            await app.send("pending", "news", "hello")
            await workflow_of(client, folder, "pending").terminate()
        async with app_of(folder) as app:
            async with asyncio.TaskGroup() as beginning:
                for kind in kinds:
                    beginning.create_task(_begin(app, folder, kind, kind, seconds=3.0))
            for kind in kinds:
                with suppress(RPCError):  # on a slow machine it may be over
                    await workflow_of(client, folder, kind).terminate()
            (folder / "go").touch()
            await app.resolve("asking", "approval.1", Approve(), by="ada")
            for run_id in (*kinds, "pending"):
                assert (await stands(app, run_id)).state is RunState.COMPLETED
        assert acted(folder) == sorted((*kinds, "pending"))

    run(main())


def test_programs_that_know_nothing_of_temporal_have_their_runs_executed(folder: Path) -> None:
    async def main() -> None:
        unaware = app_of(folder, app=App(url_of(folder)))
        async with app_of(folder), unaware.connect():
            asking = await unaware.start("asking", SECRET)
            listening = await unaware.start("listening")
            for handle in (asking, listening):
                await stands(unaware, handle.run_id, RunState.SUSPENDED)
            await unaware.resolve(asking.run_id, "approval.1", Approve(), by="ada")
            await unaware.send(listening.run_id, "news", "hello")
            assert await asking.result() == f"{SECRET}!"
            assert await listening.result() == "hello"
        assert acted(folder) == sorted((asking.run_id, listening.run_id))

    run(main())


def test_the_server_of_temporal_dies_in_the_middle_of_runs(
    folder: Path, temporal: OwnTemporal
) -> None:
    async def main() -> None:
        runs = [f"{kind}-{n}" for kind in ("busy", "asleep", "asking") for n in range(3)]
        async with app_of(folder) as app:
            async with asyncio.TaskGroup() as beginning:
                for run_id in runs:
                    kind, _, number = run_id.partition("-")
                    seconds = 1.0 + 3.0 * int(number)
                    beginning.create_task(_begin(app, folder, kind, run_id, seconds))
            temporal.kill()
            answered = asyncio.create_task(
                app.resolve("asking-0", "approval.1", Approve(), by="ada")
            )
            await stands(app, "asleep-0", RunState.PENDING, RunState.COMPLETED)
            (folder / "go").touch()
            for number in range(3):  # what is executed needs no server
                await stands(app, f"busy-{number}", RunState.COMPLETED)
            await asyncio.to_thread(temporal.start)
            await answered
            for number in (1, 2):
                await app.resolve(f"asking-{number}", "approval.1", Approve(), by="ada")
            for run_id in runs:
                assert (await stands(app, run_id)).state is RunState.COMPLETED
            client = await Client.connect(temporal.address)
            for run_id in runs:
                assert await closed(workflow_of(client, folder, run_id)) == "COMPLETED"
        assert acted(folder) == sorted(runs)
        assert len(notes(folder / "held.log")) == 3

    try:
        run(main())
    finally:
        temporal.kill()
        temporal.start()


def test_a_run_stays_with_the_workers_of_its_version(folder: Path, temporal: OwnTemporal) -> None:
    async def main() -> None:
        client = await Client.connect(temporal.address)
        async with app_of(folder, 1) as app:
            await _begin(app, folder, "asking", "old")
        async with app_of(folder, 2) as app:
            await app.resolve("old", "approval.1", Approve(), by="ada")
            for number in range(2):
                handle = await app.start("asleep", 1.5, run_id=f"new-{number}")
                await handle.result()
            await stands(app, "old", RunState.PENDING)
        async with app_of(folder, 1, 2) as app:
            assert await app.handle("old").result() == f"{SECRET}!"
        assert acted(folder) == ["new-0", "new-1", "old"]
        for name, function in (("old", "asking@1"), ("new-0", "asleep@2")):
            found = await workflow_of(client, folder, name).describe()
            assert found.task_queue == f"{queue_of(folder)}:{function}"

    run(main())


def test_workflows_are_found_by_function_state_and_session(
    folder: Path, temporal: OwnTemporal
) -> None:
    async def main() -> None:
        client = await Client.connect(temporal.address)

        async def found(query: str) -> list[str]:
            mine = f"TaskQueue STARTS_WITH '{queue_of(folder)}' AND {query}"
            return sorted([each.id.partition("/")[2] async for each in client.list_workflows(mine)])

        async def until_found(query: str, *run_ids: str) -> None:
            while await found(query) != sorted(run_ids):
                await asyncio.sleep(0.1)

        async with app_of(folder) as app:
            async with asyncio.TaskGroup() as beginning:
                for kind in ("busy", "asleep", "asking"):
                    beginning.create_task(_begin(app, folder, kind, kind))
            turn = (await begun(app, SECRET, room="room-7")).run_id
            await stands(app, turn, RunState.SUSPENDED)
            await until_found("PerdureState = 'running'", "busy")
            await until_found("PerdureState = 'sleeping'", "asleep")
            await until_found("PerdureState = 'suspended'", "asking", turn)
            await until_found("PerdureFunction = 'answering@1'", turn)
            await until_found("PerdureSession = 'room-7'", turn)
            (folder / "go").touch()
            await until_found("PerdureState = 'completed'", "busy")
            for name in ("asleep", "asking", turn):
                await app.cancel(name)
            await until_found("PerdureState = 'cancelled'", "asleep", "asking", turn)

    run(main())


def test_histories_show_nothing_of_what_a_run_is_told_asked_or_comes_to(
    folder: Path, temporal: OwnTemporal
) -> None:
    keyring = Keyring(current="a", keys={"a": Keyring.generate_key()})

    async def connect() -> Client:
        codec = payload_codec(keyring)
        converter = dataclasses.replace(DataConverter.default, payload_codec=codec)
        return await Client.connect(temporal.address, data_converter=converter)

    async def main() -> None:
        async with app_of(folder, encryption=keyring, temporal=connect) as app:
            await _begin(app, folder, "asking", "asking")
            await _begin(app, folder, "listening", "listening")
            turn = await begun(app, SECRET)
            await app.resolve("asking", "approval.1", Approve({"to": SECRET}), by="ada")
            for run_id in ("listening", turn.run_id):
                await app.send(run_id, "news", SECRET)
            assert await app.handle("asking").result() == f"{SECRET}!"
            assert await app.handle("listening").result() == SECRET
            assert await turn.result() == SECRET
        client = await Client.connect(temporal.address)
        for run_id in ("asking", "listening", turn.run_id):
            seen = await shows(workflow_of(client, folder, run_id))
            assert SECRET.encode() not in seen
            assert b"heartbeat_seconds" not in seen  # of the request that starts it

    run(main())
