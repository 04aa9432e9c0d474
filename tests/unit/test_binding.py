from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import (
    InvalidFunction,
    InvalidInvocation,
    InvalidPayload,
    InvalidRecord,
    MissingHandler,
    OperationFailed,
    OperationSuspended,
    RuntimeRecordMismatch,
)
from perdure.journal import (
    Binding,
    Failure,
    Handlers,
    Invocation,
    OperationKind,
    Outcome,
    Record,
    Success,
    Suspended,
    SuspensionReason,
)

TOOL = OperationKind.TOOL_CALL


class LocalRuntime:
    """Calls handlers and remembers records by stable key."""

    def __init__(self, handlers: Handlers, **lies: Any) -> None:
        self.records: dict[str, Record] = {}
        self.handlers = handlers
        self.lies = lies

    async def execute(self, invocation: Invocation) -> Record:
        record = self.records.get(invocation.stable_key)
        if record is None:
            worker = self.handlers.lookup(invocation.kind, invocation.handler_id)
            record = Record(invocation, await worker(invocation))
            self.records[invocation.stable_key] = record
        return Record(msgspec.structs.replace(record.invocation, **self.lies), record.outcome)


def bound(outcome: Outcome | None = None, namespace: str = "", **lies: Any) -> Binding:
    handlers = Handlers()

    @handlers.tool_call("tools")
    async def echo(invocation: Invocation) -> Outcome:
        return outcome or Success(invocation.input_json)

    return Binding(
        run_id="run-1",
        runtime=LocalRuntime(handlers, **lies),
        handler_ids={TOOL: "tools", OperationKind.MODEL_REQUEST: "unknown"},
        namespace=namespace,
    )


def execute(binding: Binding, step_id: str = "tool.call", input_json: bytes = b"[1]") -> Success:
    return asyncio.run(binding.execute(TOOL, step_id, 1, input_json))


def test_a_success_is_returned_and_replayed() -> None:
    binding = bound()
    assert execute(binding) == execute(binding) == Success(b"[1]")


def test_namespaces_nest_and_reach_the_step_id_only() -> None:
    binding = bound().with_namespace("graph.0").with_namespace("step.2")
    execute(binding)
    assert isinstance(binding.runtime, LocalRuntime)
    [record] = binding.runtime.records.values()
    assert record.invocation.stable_key == "run-1/graph.0.step.2.tool.call/1"
    assert record.invocation.handler_id == "tools"
    with pytest.raises(InvalidInvocation):
        execute(bound(namespace="n" * 120))


def test_a_kind_without_a_handler_id_is_missing_before_anything_is_checked() -> None:
    with pytest.raises(MissingHandler, match="model_request, tool_call"):
        asyncio.run(bound().execute(OperationKind.MCP_REQUEST, "a/b", -1, b""))


@pytest.mark.parametrize(
    ("step_id", "input_json", "error"),
    [("a/b", b"", InvalidInvocation), ("tool.call", b"{", InvalidPayload)],
)
def test_the_runtime_is_not_asked_for_an_invalid_invocation(
    step_id: str, input_json: bytes, error: type[Exception]
) -> None:
    binding = bound()
    with pytest.raises(error):
        execute(binding, step_id, input_json)
    assert isinstance(binding.runtime, LocalRuntime)
    assert binding.runtime.records == {}


@pytest.mark.parametrize(
    "lie",
    [
        {"run_id": "run-2"},
        {"step_id": "other"},
        {"sequence": 2},
        {"kind": OperationKind.MCP_REQUEST},
        {"handler_id": "other"},
        {"input_json": b"[ 1 ]"},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_record_of_another_invocation_is_a_mismatch(lie: dict[str, Any]) -> None:
    with pytest.raises(RuntimeRecordMismatch, match=f"differs in {next(iter(lie))};"):
        execute(bound(**lie))


def test_a_key_used_again_with_other_input_is_a_mismatch() -> None:
    binding = bound()
    execute(binding)
    with pytest.raises(RuntimeRecordMismatch, match="input_json"):
        execute(binding, input_json=b"[2]")


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Failure("Boom", message="no"), OperationFailed),
        (Suspended(SuspensionReason.APPROVAL, b"{}"), OperationSuspended),
        (Success(b"nope"), InvalidPayload),
        (Failure("not a name"), InvalidRecord),
    ],
)
def test_other_outcomes_and_broken_records_raise(outcome: Outcome, error: type[Exception]) -> None:
    with pytest.raises(error):
        execute(bound(outcome))


def test_a_broken_record_is_reported_before_a_mismatch() -> None:
    with pytest.raises(InvalidInvocation):
        execute(bound(run_id="a/b"))


def test_a_handler_nobody_registered_is_named_with_what_is() -> None:
    with pytest.raises(MissingHandler, match=r"model_request handler 'unknown' .*: none"):
        asyncio.run(bound().execute(OperationKind.MODEL_REQUEST, "model.request", 1, b"{}"))


def test_handlers_are_kept_by_kind_and_id() -> None:
    handlers = Handlers()

    async def worker(invocation: Invocation) -> Outcome:
        return Success(b"null")

    for kind in OperationKind:
        assert getattr(handlers, kind)("b")(worker) is worker
        handlers.register(kind, "a", worker)
        assert handlers.ids(kind) == ["a", "b"]
        assert handlers.lookup(kind, "b") is worker
        assert (kind, "b") in handlers
        assert (kind, "c") not in handlers
        with pytest.raises(InvalidFunction, match=f"{kind} handler 'a' is registered already"):
            handlers.register(kind, "a", worker)
        with pytest.raises(MissingHandler, match="a, b"):
            handlers.lookup(kind, "c")
    with pytest.raises(InvalidInvocation):
        handlers.tool_call("a/b")(worker)
