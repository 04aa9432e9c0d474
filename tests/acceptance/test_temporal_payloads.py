"""What is larger than Temporal carries, kept in a store of blobs, on a real server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.worker import Replayer

from perdure.blobs import FileBlobs
from perdure.encryption import Keyring
from perdure.errors import RuntimeFailed, StorageBusy, StorageCorrupt
from perdure.journal import Failure, Success
from perdure.runtimes.temporal import (
    operation_worker,
    payload_codec,
    payload_storage,
    workflow_runner,
)
from tests.acceptance.operating import Place, Tools
from tests.acceptance.samples import LONG
from tests.acceptance.temporal_turn import LARGE, Large
from tests.harness import run
from tests.services import connected

pytestmark = LONG

INPUT = "x" * 2_000_000
GROWN = 6 * 1024 * 1024


def test_operations_are_as_large_as_their_options_say_and_histories_stay_small(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as server:
            place = Place(_keeping(server, tmp_path))
            runtime = place.runtime(LARGE)
            async with operation_worker(place.client, place.queue, tools.handlers):
                came = [
                    (await runtime.execute(place.invocation(value, sequence))).outcome
                    for sequence, value in enumerate([INPUT, ["grow", GROWN], ["grow", 9 << 20]])
                ]
            assert came[0] == Success(b'{"of": "%s"}' % INPUT.encode())
            assert isinstance(came[1], Success)
            assert len(came[1].output_json) == GROWN + 2
            assert came[2] == Failure("InvalidPayload")
            assert len(tools.calls) == 3
            for sequence in range(3):
                key = place.invocation("", sequence).stable_key
                assert await _size(server.get_workflow_handle(key)) < 10_000
            # Nobody serves the queue, and the records are whole; then they are lost.
            again = place.invocation(["grow", GROWN], 1)
            assert (await runtime.execute(again)).outcome == came[1]
            for path in tmp_path.rglob("*"):
                if path.is_file():
                    path.unlink()
            with pytest.raises(StorageCorrupt, match="is not there"):
                await runtime.execute(again)

    run(main())


def test_a_workflow_has_them_encrypted_and_replays_them(tmp_path: Path) -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as server:
            codec = payload_codec(Keyring(current="a", keys={"a": Keyring.generate_key()}))
            place = Place(_keeping(server, tmp_path, payload_codec=codec))
            asked = [json.dumps(each) for each in (INPUT, ["grow", GROWN], ["grow", 9 << 20])]
            async with operation_worker(
                place.client,
                place.queue,
                tools.handlers,
                workflows=[Large],
                max_cached_workflows=0,
            ):
                handle = await place.client.start_workflow(
                    Large.run, asked, id=place.run_id, task_queue=place.queue
                )
                assert await handle.result() == [
                    len(INPUT) + len('{"of": ""}'),
                    GROWN + 2,
                    "InvalidPayload",
                ]
            assert len(tools.calls) == 3
            assert await _size(handle) < 20_000
            assert not any(b"xxxx" in path.read_bytes() for path in tmp_path.rglob("*/*"))
            replayer = Replayer(
                workflows=[Large],
                workflow_runner=workflow_runner(),
                data_converter=place.client.data_converter,
            )
            await replayer.replay_workflow(await handle.fetch_history())
            assert len(tools.calls) == 3

    run(main())


def test_a_worker_that_lacks_what_was_stored_fails_the_operation_once_and_for_all(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as server:
            place = Place(_keeping(server, tmp_path / "ours"))
            elsewhere = _keeping(server, tmp_path / "theirs")
            invocation = place.invocation(INPUT)
            async with operation_worker(elsewhere, place.queue, tools.handlers):
                with pytest.raises(RuntimeFailed, match=r"StorageCorrupt: a payload, .*not there"):
                    await place.runtime(LARGE).execute(invocation)
            handle = server.get_workflow_handle(invocation.stable_key)
            assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
            assert tools.calls == []

    run(main())


class Shaky(FileBlobs):
    """Cannot be reached the first time that something is to be kept."""

    reached = False

    async def put(self, name: str, data: bytes) -> None:
        if not self.reached:
            self.reached = True
            raise StorageBusy("the store of payloads does not answer")
        await super().put(name, data)


def test_an_outcome_that_could_not_be_kept_is_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as server:
            place = Place(_with(server, payload_storage(Shaky(tmp_path))))
            async with operation_worker(place.client, place.queue, tools.handlers):
                invocation = place.invocation(["grow", GROWN])
                outcome = (await place.runtime(LARGE).execute(invocation)).outcome
            assert isinstance(outcome, Success)
            assert tools.calls == [invocation.stable_key] * 2

    run(main())


def _keeping(client: Client, folder: Path, **settings: Any) -> Client:
    return _with(client, payload_storage(FileBlobs(folder)), **settings)


def _with(client: Client, storage: ExternalStorage, **settings: Any) -> Client:
    converter = dataclasses.replace(DataConverter.default, external_storage=storage, **settings)
    return Client(**{**client.config(), "data_converter": converter})


async def _size(handle: WorkflowHandle[Any, Any]) -> int:
    return sum(event.ByteSize() for event in (await handle.fetch_history()).events)
