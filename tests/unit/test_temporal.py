"""Operations on Temporal as far as no server is needed: what is refused, and what replays."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from perdure.encryption import Keyring
from perdure.errors import (
    InvalidInvocation,
    InvalidOptions,
    InvalidPayload,
    InvalidRecord,
    KeyUnavailable,
    MissingExtra,
    MissingHandler,
    RuntimeFailed,
    StorageCorrupt,
    UnmetNeeds,
)
from perdure.journal import Binding, Invocation, OperationKind
from perdure.preflight import NeededTool, Needs
from perdure.runtimes.temporal import (
    OperationOptions,
    TemporalRuntime,
    payload_codec,
    workflow_runner,
    workflow_runtime,
)
from perdure.runtimes.temporal.operation import ForeignOperation, Operation
from perdure.runtimes.temporal.payload import document_value, record_of
from tests.acceptance.temporal_agent import Support
from tests.acceptance.temporal_turn import Held, Turn
from tests.harness import run

TOOL = OperationKind.TOOL_CALL
HISTORIES = sorted((Path(__file__).parents[1] / "vectors" / "temporal").glob("*.history.json"))
KEY = Keyring.generate_key()
PAYLOAD = Payload(metadata={"encoding": b"json/plain", "more": b"1"}, data=b'"a secret"')


def runtime(**options: Any) -> TemporalRuntime:
    """Return a runtime whose client reaches nobody, and would fail as soon as it tried."""
    registrations = options.pop("registrations", [(TOOL, "tools")])
    queue = options.pop("task_queue", "agents")
    namespace = options.pop("namespace", "default")

    async def lazily() -> Client:
        return await Client.connect("127.0.0.1:1", namespace=namespace, lazy=True)

    return TemporalRuntime(
        run(lazily()),
        task_queue=queue,
        registrations=registrations,
        options=OperationOptions(**options),
    )


def invocation(value: object = "plain", handler_id: str = "tools") -> Invocation:
    return Invocation.of("run-1", "tool", 1, TOOL, handler_id, value)


@pytest.mark.parametrize(
    ("asked", "options", "error"),
    [
        (invocation(handler_id="other"), {}, MissingHandler),
        (Invocation("a/b", "tool", 1, TOOL, "other", b"1"), {}, InvalidInvocation),
        (invocation("x" * 1024), {"input_limit_bytes": 1024}, InvalidPayload),
        (invocation("x" * 1024), {"request_limit_bytes": 1024}, InvalidPayload),
        (invocation("x" * 1024), {"record_limit_bytes": 2048}, InvalidPayload),
        (invocation('"' * 300_000), {"request_limit_bytes": 4 << 20}, InvalidPayload),
    ],
    ids=["handler", "identity", "input", "request", "record", "record that repeats it"],
)
def test_what_cannot_be_executed_is_refused_before_anybody_is_asked(
    asked: Invocation, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        run(runtime(**options).execute(asked))


def test_a_workflow_refuses_what_is_not_registered_before_it_schedules_it() -> None:
    asked = workflow_runtime(task_queue="agents", registrations=[(TOOL, "tools")])
    with pytest.raises(MissingHandler, match="no worker of the task queue 'agents'"):
        run(asked.execute(invocation(handler_id="other")))


def test_where_no_server_answers_it_says_so() -> None:
    with pytest.raises(RuntimeFailed, match="Connection refused"):
        run(runtime().execute(invocation()))


@pytest.mark.parametrize("where", ["a workflow of each", "inside of a workflow"])
def test_what_a_run_needs_is_registered_before_anybody_is_asked(where: str) -> None:
    known = [(TOOL, "tools"), (OperationKind.MODEL_REQUEST, "model")]
    each = where == "a workflow of each"
    # Outside of a workflow, where anything but this check would fail.
    asked = runtime(registrations=known) if each else workflow_runtime(registrations=known)
    ids = {TOOL: "tools", OperationKind.MODEL_REQUEST: "model"}
    binding = Binding(run_id="run-1", runtime=asked, handler_ids=ids)
    needs = Needs(tools=(NeededTool("shop"),))
    asked.preflight(binding).check(needs)
    others = msgspec.structs.replace(binding, handler_ids={**ids, TOOL: "other"})
    with pytest.raises(UnmetNeeds, match="add tool_call 'other' to the runtime's registrations"):
        asked.preflight(others).check(needs)
    with pytest.raises(UnmetNeeds, match="add a handler id for retry_delay to the binding's"):
        asked.preflight(binding).check(Needs(retries=True))


def test_without_registrations_a_workflow_has_its_binding_checked() -> None:
    runtime = workflow_runtime()
    binding = Binding(run_id="run-1", runtime=runtime, handler_ids={TOOL: "tools"})
    runtime.preflight(binding).check(Needs(model_requests=False, tools=(NeededTool("shop"),)))
    with pytest.raises(UnmetNeeds, match="add a handler id for model_request"):
        runtime.preflight(binding).check(Needs())


@pytest.mark.parametrize(
    "options",
    [
        {"start_to_close_seconds": 0},
        {"start_to_close_seconds": float("nan")},
        {"start_to_close_seconds": True},
        {"start_to_close_seconds": 901},
        {"schedule_to_close_seconds": 11 * 365 * 24 * 3600},
        {"heartbeat_seconds": 301},
        {"heartbeat_seconds": 0},
        {"initial_interval_seconds": 61},
        {"backoff_coefficient": 0.999},
        {"maximum_attempts": 0},
        {"maximum_attempts": 1.0},
        {"input_limit_bytes": (2 << 20) + 1},
        {"record_limit_bytes": (8 << 20) + 1},
        {"registrations": []},
        {"registrations": [(TOOL, "tools"), (TOOL, "tools")]},
        {"task_queue": "a/b"},
        {"namespace": "a/b"},
    ],
    ids=str,
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions):
        runtime(**options)


def test_an_answer_that_is_no_text_of_a_record_is_none() -> None:
    for document in (b"{}", b'"{}"', b"null", b"\xff"):
        with pytest.raises(InvalidRecord):
            record_of(document_value(document))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.name.partition(".")[0])
def test_histories_of_earlier_releases_replay(path: Path) -> None:
    run(_replayer().replay_workflow(_history(path.read_text("utf-8"))))


def test_a_history_of_other_code_does_not_replay() -> None:
    turn = next(path for path in HISTORIES if path.name.startswith("turn"))
    changed = turn.read_text("utf-8").replace("agent.tool/2", "agent.tool/7")
    with pytest.raises(NondeterminismError):
        run(_replayer().replay_workflow(_history(changed)))


def test_a_payload_is_encrypted_whole_and_bound_to_its_metadata() -> None:
    codec = payload_codec(Keyring(current="a", keys={"a": KEY}))

    async def main() -> None:
        (sealed,) = await codec.encode([PAYLOAD])
        assert b"secret" not in sealed.SerializeToString()
        assert sealed.metadata.keys() == {"encoding"}
        assert await codec.decode([sealed, PAYLOAD]) == [PAYLOAD, PAYLOAD]

    run(main())


@pytest.mark.parametrize(
    ("keys", "flipped", "error"),
    [({"b": KEY}, 0, KeyUnavailable), ({"a": KEY}, 1, StorageCorrupt)],
    ids=["another key", "changed"],
)
def test_what_cannot_be_decrypted_is_a_failure_for_good(
    keys: dict[str, str], flipped: int, error: type[Exception]
) -> None:
    async def main() -> None:
        (sealed,) = await payload_codec(Keyring(current="a", keys={"a": KEY})).encode([PAYLOAD])
        sealed.data = sealed.data[:-1] + bytes([sealed.data[-1] ^ flipped])
        with pytest.raises(ApplicationError) as raised:
            await payload_codec(Keyring(current=next(iter(keys)), keys=keys)).decode([sealed])
        assert (raised.value.type, raised.value.non_retryable) == (error.__name__, True)
        assert type(raised.value.__cause__) is error

    run(main())


def test_without_the_client_of_temporal_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "temporalio" else found(name)
    )
    monkeypatch.delitem(sys.modules, "perdure.runtimes.temporal")
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[temporal\]'"):
        importlib.import_module("perdure.runtimes.temporal")


def _history(text: str) -> WorkflowHistory:
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


def _replayer() -> Replayer:
    return Replayer(
        workflows=[Operation, ForeignOperation, Turn, Held, Support],
        workflow_runner=workflow_runner(),
        plugins=[PydanticAIPlugin()],
    )
