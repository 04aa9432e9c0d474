"""Operations inside a user's own workflow, on a real server and in the SDK's sandbox."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from perdure.encryption import Keyring
from perdure.errors import InvalidRecord, KeyUnavailable, RuntimeFailed
from perdure.journal import Handlers, Success
from perdure.runtimes.temporal import operation_worker, payload_codec, workflow_runner
from tests.acceptance.operating import Place, Tools
from tests.acceptance.samples import LONG
from tests.acceptance.temporal_turn import Held, Turn
from tests.harness import run
from tests.services import connected

pytestmark = LONG


def test_bindings_work_in_a_workflow_and_its_history_replays() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client:
            place = Place(client)
            # Nothing is cached, so each task replays the workflow from its start.
            async with _worker(place, tools, max_cached_workflows=0):
                handle = await client.start_workflow(
                    Turn.run, id=place.run_id, task_queue=place.queue
                )
                assert await handle.result() == [
                    '{"of": "plain"}',
                    "NoSuchBook",
                    "approval",
                    '{"of": "left"}',
                    "DuplicateOperation",
                    '{"of": "plain"}',
                    "RuntimeRecordMismatch",
                ]
            keys = [f"{place.run_id}/agent.tool/{sequence}" for sequence in (1, 2, 3, 4)]
            assert sorted(tools.calls) == ["delay 1", *keys]
            history = await handle.fetch_history()
            scheduled = [
                event.activity_task_scheduled_event_attributes.activity_id
                for event in history.events
                if event.HasField("activity_task_scheduled_event_attributes")
            ]
            assert scheduled == [keys[0], f"{place.run_id}/agent.retry/1", *keys[1:]]
            await Replayer(workflows=[Turn], workflow_runner=workflow_runner()).replay_workflow(
                history
            )
            assert len(tools.calls) == 5

    run(main())


def test_what_no_handler_performs_fails_the_workflow_and_not_its_task() -> None:
    async def main() -> None:
        async with connected() as client:
            place = Place(client)
            async with operation_worker(client, place.queue, Handlers(), workflows=[Held]):
                with pytest.raises(WorkflowFailureError) as raised:
                    await client.execute_workflow(
                        Held.run, "plain", id=place.run_id, task_queue=place.queue
                    )
            assert getattr(raised.value.cause, "type", "") == RuntimeFailed.__name__
            assert "MissingHandler" in str(raised.value.cause)

    run(main())


def test_a_workflow_that_is_cancelled_cancels_what_it_has_under_way() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client, _worker(place := Place(client), tools):
            handle = await client.start_workflow(
                Held.run, "hold", id=place.run_id, task_queue=place.queue
            )
            await tools.begun.wait()
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
            assert tools.cancelled.is_set()

    run(main())


def test_payloads_are_encrypted_and_another_key_fails_for_good() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client:
            ours, theirs = _with_key(client, "ours"), _with_key(client, "theirs")
            place, other = Place(ours), Place(theirs)
            other.queue = place.queue
            invocation = place.invocation("a secret")
            async with _worker(place, tools):
                record = await place.runtime().execute(invocation)
                assert record.outcome == Success(b'{"of": "a secret"}')
                with pytest.raises(KeyUnavailable, match="'ours'"):
                    await other.runtime().execute(invocation)
                # The worker cannot read what it is asked: that is final, and no task is repeated.
                unreadable = other.invocation("unreadable")
                with pytest.raises(RuntimeFailed, match="KeyUnavailable"):
                    await other.runtime().execute(unreadable)
            history = await client.get_workflow_handle(invocation.stable_key).fetch_history()
            assert "secret" not in history.to_json()
            assert b"secret" not in b"".join(e.SerializeToString() for e in history.events)
            assert tools.calls == [invocation.stable_key]

    run(main())


def test_whoever_has_no_codec_refuses_what_is_encrypted() -> None:
    async def main() -> None:
        tools = Tools()
        async with connected() as client:
            plain, sealed = Place(client), Place(_with_key(client, "ours"))
            invocation = sealed.invocation("a secret")
            async with _worker(sealed, tools):
                await sealed.runtime().execute(invocation)
            with pytest.raises(InvalidRecord, match="binary/perdure-sealed"):
                await plain.runtime().execute(invocation)
            sealed.queue = plain.queue
            async with _worker(plain, tools):
                with pytest.raises(RuntimeFailed, match=r"InvalidPayload.*binary/perdure-sealed"):
                    await sealed.runtime().execute(sealed.invocation("another", 2))
            assert tools.calls == [invocation.stable_key]

    run(main())


def _with_key(client: Client, name: str) -> Client:
    keyring = Keyring(current=name, keys={name: Keyring.generate_key()})
    converter = dataclasses.replace(DataConverter.default, payload_codec=payload_codec(keyring))
    return Client(**{**client.config(), "data_converter": converter})


def _worker(place: Place, tools: Tools, **settings: Any) -> Any:
    return operation_worker(
        place.client, place.queue, tools.handlers, workflows=[Turn, Held], **settings
    )
