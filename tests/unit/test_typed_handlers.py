"""Handlers that are given requests and return responses, and the calls that ask them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import pytest

from perdure import Context
from perdure.errors import (
    InvalidEventRequest,
    InvalidFunction,
    InvalidMcpRequest,
    InvalidToolRequest,
    InvalidToolResponse,
    OperationFailed,
    OperationSuspended,
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
from perdure.journal.payloads import (
    ApprovalRequest,
    ApprovalResponse,
    Decision,
    DecisionAction,
    EventRequest,
    EventSource,
    Execution,
    McpRequest,
    McpResponse,
    ModelRequest,
    ResponseMessage,
    RetryRequest,
    TextPart,
    ToolCall,
    ToolRequest,
    ToolResponse,
    encode_tool_request,
)
from perdure.runtimes.embedded import EmbeddedRuntime
from tests.harness import RUN, app_on, once, operations, run, sql

if TYPE_CHECKING:
    from perdure.journal.payloads import ToolRequest as SeenByCheckersOnly

Kind = OperationKind
Alias: TypeAlias = ToolRequest

CALL = ToolCall(id="call-1", name="weather", arguments_json="{}")
ASKED = ToolRequest(call=CALL, arguments_json='{"city":"Oslo"}')
MODEL = ModelRequest(messages=())
ANSWER = ResponseMessage(parts=(TextPart(content="Rain."),))
MCP = McpRequest(method="tools/list", params_json="{}", client_name="a", client_version="1")
EVENT = EventRequest(
    source=EventSource.APPLICATION, parent_sequence=1, event_index=0, event_json="{}"
)
RETRY = RetryRequest(
    delay_ms=1, retry_number=1, model_requests=1, total_delay_ms=1, error_name="Busy"
)
PROPOSED = Decision("call-1", DecisionAction.APPROVE)
APPROVAL = ApprovalRequest(
    call=CALL, execution=Execution.REQUIRES_APPROVAL, arguments_json="{}", proposed=PROPOSED
)
DENIED = ApprovalResponse(Decision("call-1", DecisionAction.DENY, "no"))


class LocalRuntime:
    """Calls handlers and remembers records by stable key."""

    def __init__(self, handlers: Handlers) -> None:
        self.records: dict[str, Record] = {}
        self.handlers = handlers

    async def execute(self, invocation: Invocation) -> Record:
        key = invocation.stable_key
        if key not in self.records:
            worker = self.handlers.lookup(invocation.kind, invocation.handler_id)
            self.records[key] = Record(invocation, await worker(invocation))
        return self.records[key]


def bound(handlers: Handlers) -> Binding:
    ids = dict.fromkeys(Kind, "work")
    return Binding(run_id=RUN, runtime=LocalRuntime(handlers), handler_ids=ids)


def every_kind(asked: list[object]) -> Handlers:
    handlers = Handlers()

    @handlers.model_request("work")
    @handlers.model_stream("work")
    async def model(request: ModelRequest) -> ResponseMessage:
        asked.append(request)
        return ANSWER

    @handlers.tool_call("work")
    async def tool(request: ToolRequest) -> ToolResponse:
        asked.append(request)
        return ToolResponse(content=request.arguments_json)

    @handlers.mcp_request("work")
    async def mcp(request: McpRequest | ToolRequest) -> McpResponse | ToolResponse:
        asked.append(request)
        if isinstance(request, ToolRequest):
            return ToolResponse(content=b"\xff")
        return McpResponse(result_json="[]", events_json=("{}",))

    @handlers.event_delivery("work")
    async def event(request: EventRequest) -> str:
        asked.append(request)
        return "whatever"

    @handlers.retry_delay("work")
    async def retry(request: RetryRequest) -> None:
        asked.append(request)

    @handlers.approval_resume("work")
    async def approval(request: ApprovalRequest) -> ApprovalResponse:
        asked.append(request)
        return DENIED

    return handlers


@pytest.mark.parametrize(
    ("kind", "request_", "response"),
    [
        (Kind.MODEL_REQUEST, MODEL, ANSWER),
        (Kind.MODEL_STREAM, MODEL, ANSWER),
        (Kind.TOOL_CALL, ASKED, ToolResponse(content='{"city":"Oslo"}')),
        (Kind.MCP_REQUEST, MCP, McpResponse(result_json="[]", events_json=("{}",))),
        (Kind.MCP_REQUEST, ASKED, ToolResponse(content=b"\xff")),
        (Kind.EVENT_DELIVERY, EVENT, None),
        (Kind.RETRY_DELAY, RETRY, None),
        (Kind.APPROVAL_RESUME, APPROVAL, DENIED),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else type(value).__name__,
)
def test_a_request_reaches_its_handler_and_its_response_comes_back(
    kind: Kind, request_: Any, response: Any
) -> None:
    asked: list[object] = []
    binding = bound(every_kind(asked))
    ask = getattr(binding, kind)
    for _ in range(2):
        assert asyncio.run(ask("step", 1, request_)) == response
    assert asked == [request_]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda binding: binding.tool_call("step", 1, MODEL), InvalidToolRequest),
        (lambda binding: binding.mcp_request("step", 1, None), InvalidMcpRequest),
        (
            lambda binding: binding.event_delivery(
                "step", 1, msgspec.structs.replace(EVENT, event_json="[]")
            ),
            InvalidEventRequest,
        ),
    ],
    ids=["type", "none", "value"],
)
def test_a_request_that_cannot_be_written_is_refused_before_it_is_asked(
    ask: Any, error: type[Exception]
) -> None:
    asked: list[object] = []
    with pytest.raises(error):
        asyncio.run(ask(bound(every_kind(asked))))
    assert asked == []


async def raw(invocation: Invocation) -> Outcome:
    return Success(b'{"content": 1}')


def test_a_recorded_response_that_is_none_is_refused_each_time() -> None:
    handlers = Handlers()
    handlers.tool_call("work")(raw)
    binding = bound(handlers)
    for _ in range(2):
        with pytest.raises(InvalidToolResponse):
            asyncio.run(binding.tool_call("step", 1, ASKED))


@pytest.mark.parametrize(
    ("outcome", "error", "match"),
    [
        (Failure("Closed", message="no rain today"), OperationFailed, "no rain today"),
        (Suspended(SuspensionReason.APPROVAL, b"{}"), OperationSuspended, "approval"),
        ("Rain.", OperationFailed, "returns a ToolResponse, a Failure or a Suspended.* not a str"),
        (ToolResponse(content="\ud800"), OperationFailed, "InvalidToolResponse"),
    ],
    ids=["failure", "suspended", "type", "value"],
)
def test_a_handler_may_end_otherwise(outcome: Any, error: type[Exception], match: str) -> None:
    handlers = Handlers()

    @handlers.tool_call("work")
    async def tool(request: ToolRequest) -> ToolResponse:
        return outcome

    with pytest.raises(error, match=match):
        asyncio.run(bound(handlers).tool_call("step", 1, ASKED))


@pytest.mark.parametrize(
    ("kind", "document", "code"),
    [
        (Kind.TOOL_CALL, b"{}", "InvalidToolRequest"),
        (
            Kind.TOOL_CALL,
            encode_tool_request(ASKED).replace(b'"version":1', b'"version":9', 1),
            "UnsupportedToolWireVersion",
        ),
        (Kind.MCP_REQUEST, b'{"payload_kind":"tool_call"}', "InvalidToolRequest"),
        (Kind.MCP_REQUEST, b"[]", "InvalidMcpRequest"),
        (Kind.MODEL_REQUEST, b"1", "InvalidModelRequest"),
        (Kind.EVENT_DELIVERY, b"{}", "InvalidEventRequest"),
        (Kind.RETRY_DELAY, b"{}", "InvalidRetryRequest"),
        (Kind.APPROVAL_RESUME, b"{}", "InvalidApprovalRequest"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_malformed_request_is_a_failure_and_nothing_is_called(
    kind: Kind, document: bytes, code: str
) -> None:
    asked: list[object] = []
    with pytest.raises(OperationFailed) as caught:
        asyncio.run(bound(every_kind(asked)).execute(kind, "step", 1, document))
    assert (caught.value.code, asked) == (code, [])


def test_a_handler_that_takes_one_kind_of_request_refuses_the_other() -> None:
    handlers = Handlers()

    @handlers.mcp_request("work")
    async def mcp(request: McpRequest) -> McpResponse:
        raise AssertionError

    with pytest.raises(OperationFailed, match="takes a McpRequest") as caught:
        asyncio.run(bound(handlers).mcp_request("step", 1, ASKED))
    assert caught.value.code == "InvalidToolRequest"


# --- what a function is given --------------------------------------------------------------------


async def aliased(request: Alias) -> ToolResponse: ...


async def checked(request: SeenByCheckersOnly) -> ToolResponse: ...


async def spelled(request: ToolRequest) -> ToolResponse: ...


async def annotated(request: Annotated[ToolRequest, "any"], *more: int) -> ToolResponse: ...


async def raw_spelled(invocation: Invocation) -> Outcome: ...


async def unknown(request: Unknown) -> ToolResponse: ...  # type: ignore[name-defined] # noqa: F821


async def other(request: ModelRequest) -> ToolResponse: ...


async def optional(request: ToolRequest | None) -> ToolResponse: ...


async def mixed(request: ToolRequest | Invocation) -> ToolResponse: ...


async def bare(request) -> ToolResponse: ...  # type: ignore[no-untyped-def]


async def empty() -> ToolResponse: ...


class Support:
    async def __call__(self, request: ToolRequest) -> ToolResponse: ...

    async def method(self, request: ToolRequest) -> ToolResponse: ...


def _named(function: object) -> str:
    # Not its repr, which is another one in each process that collects.
    return getattr(function, "__qualname__", type(function).__name__)


@pytest.mark.parametrize(
    "function", [aliased, spelled, annotated, Support(), Support().method], ids=_named
)
def test_the_first_annotation_says_that_a_request_is_taken(function: Any) -> None:
    handlers = Handlers()
    assert handlers.tool_call("work")(function) is function
    assert handlers.lookup(Kind.TOOL_CALL, "work") is not function


@pytest.mark.parametrize("function", [raw, raw_spelled], ids=_named)
def test_the_first_annotation_says_that_an_invocation_is_taken(function: Any) -> None:
    handlers = Handlers()
    handlers.tool_call("work")(function)
    assert handlers.lookup(Kind.TOOL_CALL, "work") is function


@pytest.mark.parametrize(
    "function", [unknown, checked, other, optional, mixed, bare, empty], ids=_named
)
def test_what_cannot_be_told_is_refused_with_the_function(function: Any) -> None:
    with pytest.raises(InvalidFunction, match=f"^{function.__name__} .*to be ToolRequest, or Invo"):
        Handlers().tool_call("work")(function)


def test_a_type_that_only_checkers_import_is_known_by_its_name() -> None:
    source = (
        "from __future__ import annotations\n"
        "async def work(request: ToolRequest) -> None: ...\n"
        "async def plain(invocation: Invocation) -> None: ...\n"
    )
    names: dict[str, Any] = {}
    exec(source, names)  # a module of its own, without the imports
    handlers = Handlers()
    handlers.tool_call("typed")(names["work"])
    handlers.tool_call("plain")(names["plain"])
    assert handlers.lookup(Kind.TOOL_CALL, "typed") is not names["work"]
    assert handlers.lookup(Kind.TOOL_CALL, "plain") is names["plain"]


# --- inside a run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "returned", "code", "state"),
    [
        (b"{}", ToolResponse(content="x"), "InvalidToolRequest", "failed"),
        (encode_tool_request(ASKED), "no response", "InvalidToolResponse", "completed"),
        (encode_tool_request(ASKED), ToolResponse(content="x"), None, "completed"),
    ],
    ids=["request", "response", "fine"],
)
def test_documents_decide_what_becomes_of_an_effect(
    tmp_path: Path, document: bytes, returned: Any, code: str | None, state: str
) -> None:
    app, handlers, codes = app_on(tmp_path), Handlers(), []

    @handlers.tool_call("work")
    async def tool(request: ToolRequest) -> ToolResponse:
        return returned

    @app.run(version=1)
    async def work(context: Context) -> None:
        runtime = EmbeddedRuntime(context, handlers)
        binding = Binding(run_id=RUN, runtime=runtime, handler_ids={Kind.TOOL_CALL: "work"})
        try:
            await binding.execute(Kind.TOOL_CALL, "step", 1, document)
        except OperationFailed as failed:
            codes.append(failed.code)

    run(once(app, work))
    assert codes == ([] if code is None else [code])
    assert sql(tmp_path, "SELECT state FROM receipts") == [(state,)]
    assert len(run(operations(app))) == 1
