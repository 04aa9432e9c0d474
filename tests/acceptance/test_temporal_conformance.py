"""Every promise of an engine and of a runtime, kept on a real server of Temporal."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from temporalio.client import Client

from perdure import App
from perdure.journal import Handlers
from perdure.runtimes.temporal import TemporalRuntime, operation_worker
from perdure.testing import engine, runtime
from perdure.testing.runtime import REGISTERED, Code, Host
from tests.acceptance.operating import BRISK, Place
from tests.acceptance.samples import LONG
from tests.services import connected

pytestmark = LONG

T = TypeVar("T")

AT_ONCE: Final = 8
"""How many checks run at a time: they wait for the server, more than it does for them."""


def test_runs_on_temporal_are_what_an_engine_promises(tmp_path: Path) -> None:
    broken: dict[str, Exception] = {}

    async def main() -> None:
        places = asyncio.Semaphore(AT_ONCE)
        async with connected() as client, asyncio.TaskGroup() as group:
            address = client.service_client.config.target_host

            async def hold(check: engine.EngineCheck) -> None:
                url = f"temporal://{address}/default?task_queue=queue-{uuid4().hex}"
                store = f"sqlite:///{tmp_path}/{check.name}.db"
                async with places:
                    try:
                        await check(partial(App, url, store=store))
                    except Exception as error:  # noqa: BLE001 - told with those of the others
                        broken[check.name] = error

            for check in engine.checks():
                group.create_task(hold(check))

    asyncio.run(main())
    assert broken == {}


def test_operations_on_temporal_are_what_a_runtime_promises() -> None:
    broken: dict[str, Exception] = {}

    async def main() -> None:
        async with connected() as client:
            for check in runtime.checks():
                try:
                    await check(on_temporal(client))
                except Exception as error:  # noqa: BLE001 - told with those of the others
                    broken[check.name] = error

    asyncio.run(main())
    assert broken == {}


def on_temporal(client: Client) -> Host:
    """Return what calls code while a worker serves a task queue of its own."""
    place = Place(client)

    async def host(handlers: Handlers, code: Code[T]) -> T:
        operations = TemporalRuntime(
            client, task_queue=place.queue, registrations=REGISTERED, options=BRISK
        )
        async with operation_worker(client, place.queue, handlers):
            return await code(operations, place.run_id)

    return host
