"""Operations as workflows on a real server of Temporal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from perdure.errors import (
    OperationFailed,
    OperationSuspended,
    RuntimeFailed,
    RuntimeRecordMismatch,
)
from perdure.journal import Binding, Failure, Handlers, Success, Suspended, SuspensionReason
from perdure.journal.payloads import RetryRequest
from perdure.journal.record import parse_record
from perdure.runtimes.temporal import OperationOptions, operation_worker
from perdure.runtimes.temporal.names import PERDURE, ZIGAI
from perdure.runtimes.temporal.request import OperationRequest
from tests.acceptance.operating import BRISK, RETRY, TOOL, Place, Tools
from tests.acceptance.samples import LONG
from tests.harness import run
from tests.services import OwnTemporal, connected, own_temporal

pytestmark = LONG

ROOT = Path(__file__).parents[2]
DELAY = RetryRequest(
    delay_ms=10, retry_number=1, model_requests=1, total_delay_ms=10, error_name="Overloaded"
)


def test_an_operation_comes_back_with_what_its_handler_came_to() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            runtime = place.runtime()
            outcomes = [
                (await runtime.execute(place.invocation(value, sequence))).outcome
                for sequence, value in enumerate(["plain", "refuse", "raise", "ask", "garble"])
            ]
            assert outcomes == [
                Success(b'{"of": "plain"}'),
                Failure("NoSuchBook", retryable=True),
                Failure("ConnectionResetError"),
                Suspended(SuspensionReason.APPROVAL, b'{"for": "a book"}'),
                Failure("InvalidPayload"),
            ]
            assert len(tools.calls) == 5

    run(main())


def test_bindings_work_on_it_as_on_any_other_runtime() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            binding = Binding(
                run_id=place.run_id,
                runtime=place.runtime(),
                handler_ids={TOOL: "tools", RETRY: "delays"},
                namespace="agent",
            )
            await binding.retry_delay("retry", 1, DELAY)
            with pytest.raises(OperationFailed, match="ConnectionResetError"):
                await binding.execute(TOOL, "tool", 1, b'"raise"')
            with pytest.raises(OperationSuspended):
                await binding.execute(TOOL, "tool", 2, b'"ask"')
        assert tools.calls == [
            "delay 1",
            *(f"{place.run_id}/agent.tool/{sequence}" for sequence in (1, 2)),
        ]

    run(main())


def test_whoever_executes_it_again_gets_the_record_of_one_call() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client:
            place = Place(client)
            invocation = place.invocation("hold")
            async with _worker(place, tools):
                together = asyncio.gather(*(place.runtime().execute(invocation) for _ in range(5)))
                await tools.begun.wait()
                tools.may_end.set()
                records = await together
            # Nobody serves the queue any more.
            records.append(await place.runtime().execute(invocation))
            assert {record.outcome for record in records} == {Success(b'{"of": "hold"}')}
            assert len(tools.calls) == 1

    run(main())


def test_a_key_that_was_used_for_something_else_fails_closed() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            first = asyncio.create_task(place.runtime().execute(place.invocation("hold")))
            await tools.begun.wait()
            other = asyncio.create_task(place.runtime().execute(place.invocation("other")))
            tools.may_end.set()
            await first
            for again in (other, place.runtime().execute(place.invocation("another"))):
                with pytest.raises(RuntimeRecordMismatch, match="differs in input_json"):
                    await again
            assert len(tools.calls) == 1

    run(main())


def test_another_worker_goes_on_where_one_was_killed() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client:
            place = Place(client)
            command = [sys.executable, "-m", "tests.acceptance.operating"]
            address = client.service_client.config.target_host
            with subprocess.Popen(
                [*command, address, place.queue], cwd=ROOT, stdout=subprocess.PIPE
            ) as doomed:
                assert doomed.stdout is not None
                waiting = asyncio.create_task(place.runtime().execute(place.invocation("hold")))
                try:
                    assert await asyncio.to_thread(doomed.stdout.readline) == b"begun\n"
                finally:
                    doomed.kill()
            tools.may_end.set()
            async with _worker(place, tools):
                assert (await waiting).outcome == Success(b'{"of": "hold"}')
            assert len(tools.calls) == 1

    run(main())


def test_a_server_that_dies_and_comes_back_has_one_call_of_the_handler(tmp_path: Path) -> None:
    async def main(server: OwnTemporal) -> None:
        tools = Tools()
        place = Place(await Client.connect(server.address))
        runtime = place.runtime(OperationOptions(schedule_to_close_seconds=900))
        async with _worker(place, tools):
            recorded = await runtime.execute(place.invocation("plain", 1))
            tools.begun.clear()
            waiting = asyncio.create_task(runtime.execute(place.invocation("hold", 2)))
            await tools.begun.wait()
            server.kill()
            tools.may_end.set()
            await asyncio.to_thread(server.start)
            assert (await waiting).outcome == Success(b'{"of": "hold"}')
            assert await runtime.execute(place.invocation("plain", 1)) == recorded
        assert len(tools.calls) == 2

    with own_temporal(tmp_path / "temporal.db") as server:
        run(main(server))


def test_an_outcome_that_is_too_large_is_a_failure_and_no_second_call() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            large = await place.runtime().execute(place.invocation(["grow", 1_900_000]))
            larger = await place.runtime().execute(place.invocation(["grow", 2_100_000], 2))
            assert type(large.outcome) is Success
            assert larger.outcome == Failure("InvalidPayload")
            assert len(tools.calls) == 2

    run(main())


class Shelf(StorageDriver):
    """Keep large payloads in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def name(self) -> str:
        return "shelf"

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        names = [uuid4().hex for _ in payloads]
        # They are changed afterwards, into references.
        self.kept.update(zip(names, (each.SerializeToString() for each in payloads), strict=True))
        return [StorageDriverClaim({"name": name}) for name in names]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return [Payload.FromString(self.kept[claim.claim_data["name"]]) for claim in claims]


def test_an_external_storage_carries_what_temporal_does_not() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as server:
            storage = ExternalStorage(drivers=[Shelf()])
            converter = dataclasses.replace(DataConverter.default, external_storage=storage)
            client = Client(**{**server.config(), "data_converter": converter})
            async with _worker(place := Place(client), tools):
                invocation = place.invocation(["grow", 3_000_000])
                outcome = (await place.runtime().execute(invocation)).outcome
                assert isinstance(outcome, Success)
                assert len(outcome.output_json) == 3_000_002

    run(main())


def test_a_handler_that_no_worker_has_is_looked_for_a_few_times() -> None:
    async def main() -> None:
        async with connected() as client:
            place = Place(client)
            async with operation_worker(client, place.queue, Handlers()):
                for _ in range(2):
                    with pytest.raises(RuntimeFailed, match="MissingHandler: no tool_call handler"):
                        await place.runtime().execute(place.invocation("plain"))
            handle = client.get_workflow_handle(place.invocation("plain").stable_key)
            started = [
                event.activity_task_started_event_attributes.attempt
                for event in (await handle.fetch_history()).events
                if event.HasField("activity_task_started_event_attributes")
            ]
            assert started == [BRISK.maximum_attempts]

    run(main())


def test_time_that_is_over_is_said() -> None:
    brief = OperationOptions(
        start_to_close_seconds=0.2, schedule_to_close_seconds=0.2, maximum_attempts=1
    )

    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            with pytest.raises(RuntimeFailed, match=r"its time is over \(.*to-close\)"):
                await place.runtime(brief).execute(place.invocation("hold"))
            tools.may_end.set()

    run(main())


def test_a_handler_learns_that_its_operation_was_cancelled() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            invocation = place.invocation("hold")
            waiting = asyncio.create_task(place.runtime().execute(invocation))
            await tools.begun.wait()
            await client.get_workflow_handle(invocation.stable_key).cancel()
            with pytest.raises(RuntimeFailed, match="CancelledError"):
                await waiting
            assert tools.cancelled.is_set()

    run(main())


def test_whoever_stops_waiting_leaves_the_operation_as_it_is() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            waiting = asyncio.create_task(place.runtime().execute(place.invocation("hold")))
            await tools.begun.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            tools.may_end.set()
            record = await place.runtime().execute(place.invocation("hold"))
            assert (type(record.outcome), len(tools.calls)) == (Success, 1)
            assert not tools.cancelled.is_set()

    run(main())


def test_other_programs_start_operations_under_their_names() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            invocation = place.invocation("plain")
            request = OperationRequest(client.namespace, place.queue, ZIGAI, invocation, BRISK)
            text = await client.execute_workflow(
                ZIGAI.workflow,
                json.loads(request.encode()),
                id=invocation.stable_key,
                task_queue=place.queue,
                result_type=str,
            )
            record = parse_record(text.encode())
            assert (record.invocation, record.outcome) == (invocation, Success(b'{"of": "plain"}'))
            # The key is the identity, whatever the workflow is called.
            assert await place.runtime().execute(invocation) == record

    run(main())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"workflow_id": "r/s/9"},
        {"workflow_name": ZIGAI.workflow},
        {"more": 1},
        None,
    ],
    ids=["version", "another key", "another name", "a member too many", "no request"],
)
def test_a_request_that_is_none_fails_once_and_for_all(change: Any) -> None:
    async def main() -> None:
        tools = Tools()
        # It takes no setting of the worker either.
        settings: dict[str, Any] = {"workflow_failure_exception_types": []}
        async with (
            connected() as client,
            _worker(place := Place(client), tools, **settings),
        ):
            invocation = place.invocation("plain")
            request = OperationRequest(client.namespace, place.queue, PERDURE, invocation, BRISK)
            argument = None if change is None else json.loads(request.encode()) | change
            handle = await client.start_workflow(
                PERDURE.workflow,
                argument,
                id=invocation.stable_key,
                task_queue=place.queue,
                result_type=RawValue,
            )
            with pytest.raises(WorkflowFailureError) as raised:
                await handle.result()
            assert getattr(raised.value.cause, "type", "") == "InvalidPayload"
            assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
            with pytest.raises(RuntimeFailed, match="InvalidPayload"):
                await place.runtime().execute(invocation)
            assert tools.calls == []

    run(main())


def _worker(place: Place, tools: Tools, **settings: Any) -> Any:
    return operation_worker(place.client, place.queue, tools.handlers, **settings)
