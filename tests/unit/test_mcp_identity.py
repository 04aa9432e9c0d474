from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

import pytest

from perdure.adapters.mcp import (
    ClientOptions,
    DurableRequest,
    DurableRequestSequence,
    McpClient,
    Notifications,
)
from perdure.errors import (
    DurableMcpEventsRequireRouting,
    DurableSequenceExhausted,
    ForeignTask,
    InvalidInvocation,
    InvalidMcpRequest,
    InvalidMcpResponse,
    JournalError,
    MissingExtra,
    MissingHandler,
    MissingMcpClientCapability,
    SensitiveMcpHeader,
)
from perdure.journal import Binding, Invocation, OperationKind, Record, Success
from perdure.journal.payloads import (
    Header,
    McpRequest,
    McpResponse,
    encode_mcp_response,
    parse_event_request,
    parse_mcp_request,
)
from tests.harness import run

MCP = OperationKind.MCP_REQUEST
EVENT = OperationKind.EVENT_DELIVERY


class Script:
    """A runtime that answers every request alike, and remembers what it was asked."""

    def __init__(self, response: McpResponse | None = None) -> None:
        self.asked: list[Invocation] = []
        self._response = response or McpResponse(result_json="{}")

    async def execute(self, invocation: Invocation) -> Record:
        self.asked.append(invocation)
        output = encode_mcp_response(self._response) if invocation.kind is MCP else b"null"
        return Record(invocation, Success(output))

    async def send(self, request: McpRequest) -> McpResponse:
        return self._response

    def binding(self, **changes: Any) -> Binding:
        ids = {MCP: "docs", EVENT: "events"}
        return Binding(**{"run_id": "run-1", "runtime": self, "handler_ids": ids, **changes})

    @property
    def keys(self) -> list[str]:
        return [invocation.stable_key for invocation in self.asked]


def test_a_request_has_its_own_identity_or_the_next_of_the_sequence() -> None:
    script = Script()

    async def main() -> None:
        client = McpClient(script.binding(namespace="desk"), DurableRequestSequence(100))
        await client.request("ping")
        await client.request("ping", at=DurableRequest(sequence=7, step_id="mcp.other"))
        await client.request("ping", at=DurableRequest(sequence=2**64 - 1))
        await client.request("ping")

    run(main())
    assert script.keys == [
        "run-1/desk.mcp.request/100",
        "run-1/desk.mcp.other/7",
        f"run-1/desk.mcp.request/{2**64 - 1}",
        "run-1/desk.mcp.request/101",
    ]


def test_a_sequence_never_hands_out_the_largest_number() -> None:
    async def main() -> None:
        sequence = DurableRequestSequence(2**64 - 2)
        assert sequence.claim().sequence == 2**64 - 2
        for _ in range(2):
            with pytest.raises(DurableSequenceExhausted, match="no number left"):
                sequence.claim()

    run(main())
    for first in (-1, 2**64, True, 1.5):
        with pytest.raises(InvalidInvocation, match="begins with a whole number"):
            DurableRequestSequence(first)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInvocation, match="step id"):
        DurableRequestSequence(step_id="a b")


def test_a_sequence_belongs_to_one_task() -> None:
    client = McpClient(Script().binding(), DurableRequestSequence())

    async def main() -> None:
        await client.request("ping")
        with pytest.raises(ForeignTask, match="step_id of its own"):
            await asyncio.create_task(client.request("ping"))

    run(main())


def test_what_stands_in_a_request_is_what_other_clients_write() -> None:
    script = Script()
    wanted = Notifications(
        resources_list_changed=True,
        tools_list_changed=True,
        resources=("file:///a",),
        task_ids=("t",),
    )

    async def main() -> None:
        options = ClientOptions(
            name="desk", version="2", capabilities={"tasks": {}}, max_round_trips=3
        )
        client = McpClient(script.binding(), DurableRequestSequence(), options=options)
        await client.listen_durable(wanted)

    run(main())
    request = parse_mcp_request(script.asked[0].input_json)
    assert request.params_json == (
        '{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,'
        '"resourceSubscriptions":["file:///a"],"taskIds":["t"]}}'
    )
    assert (request.method, request.deliver_events) == ("subscriptions/listen", True)
    assert (request.client_name, request.client_version) == ("desk", "2")
    assert (request.capabilities_json, request.max_round_trips) == ('{"tasks":{}}', 3)


SECRET = ClientOptions(headers=(Header("x-api-key", "s3cret"),))


@pytest.mark.parametrize(
    ("refusal", "options", "method", "params"),
    [
        (SensitiveMcpHeader, SECRET, "ping", {}),
        (InvalidMcpRequest, None, "tools/call", {"name": "a", "arguments": {"b": {1, 2}}}),
        (InvalidMcpRequest, None, "tools/call", {"headers": {"Cookie": "s3cret"}}),
        (MissingMcpClientCapability, None, "tasks/get", {"taskId": "t"}),
        (MissingMcpClientCapability, None, "tools/call", {"name": "a", "task": {}}),
        (
            MissingMcpClientCapability,
            None,
            "subscriptions/listen",
            {"notifications": {"taskIds": ["t"]}},
        ),
    ],
    ids=["header", "json", "secret", "task", "call", "filter"],
)
def test_a_request_that_cannot_be_is_refused_and_has_used_up_its_number(
    refusal: type[JournalError],
    options: ClientOptions | None,
    method: str,
    params: dict[str, Any],
) -> None:
    script = Script()

    async def main() -> None:
        sequence = DurableRequestSequence(5)
        client = McpClient(script.binding(), sequence, options=options)
        with pytest.raises(refusal) as caught:
            await client.request(method, params)
        assert "s3cret" not in str(caught.value)
        assert sequence.claim().sequence == 6

    run(main())
    assert script.asked == []


@pytest.mark.parametrize(
    ("error", "changes", "asked"),
    [
        (DurableMcpEventsRequireRouting, {}, {"on_event": print}),
        (DurableMcpEventsRequireRouting, {}, {"on_event": print, "deliver_events": True}),
        (MissingHandler, {"handler_ids": {MCP: "docs"}}, {"deliver_events": True}),
    ],
    ids=["local", "both", "nobody"],
)
def test_events_that_have_nowhere_to_go_are_refused_before_a_number_is_taken(
    error: type[JournalError], changes: dict[str, Any], asked: dict[str, Any]
) -> None:
    script = Script()

    async def main() -> None:
        sequence = DurableRequestSequence(5)
        client = McpClient(script.binding(**changes), sequence)
        with pytest.raises(error):
            await client.request("ping", **asked)
        assert sequence.claim().sequence == 5

    run(main())
    assert script.asked == []


def test_a_missing_handler_for_the_request_itself_comes_after_its_number() -> None:
    async def main() -> None:
        sequence = DurableRequestSequence(5)
        client = McpClient(Script().binding(handler_ids={}), sequence)
        with pytest.raises(MissingHandler, match="mcp_request"):
            await client.request("ping")
        assert sequence.claim().sequence == 6

    run(main())


def test_a_direct_request_has_its_events_told_here_and_leaves_no_record() -> None:
    script = Script(McpResponse(result_json='{"a":1}', events_json=('{"n":1}', '{"n":2}')))
    told: list[Any] = []

    async def tell(event: Any) -> None:
        told.append(event)

    async def main() -> None:
        client = McpClient(script.binding(), direct=script)
        assert await client.request("ping", on_event=tell) == {"a": 1}
        with pytest.raises(DurableMcpEventsRequireRouting, match="durable requests only"):
            await client.request("ping", deliver_events=True)
        with pytest.raises(InvalidInvocation, match="has no identity"):
            await McpClient(script.binding()).request("ping")
        with pytest.raises(InvalidInvocation, match="needs the Binding"):
            await McpClient(direct=script).request("ping", at=DurableRequest(sequence=1))

    run(main())
    assert told == [{"n": 1}, {"n": 2}]
    assert script.asked == []


def test_events_are_delivered_in_order_before_the_result_is_looked_at() -> None:
    events = ('{"n":1}', '{"n":2}')
    script = Script(McpResponse(result_json='{"tools":7}', events_json=events))

    async def main() -> None:
        client = McpClient(script.binding(namespace="desk"), DurableRequestSequence(9))
        with pytest.raises(InvalidMcpResponse, match="no CallToolResult"):
            await client.call_tool("send", deliver_events=True)

    run(main())
    assert script.keys == [
        "run-1/desk.mcp.request/9",
        "run-1/desk.mcp.event.9.0/0",
        "run-1/desk.mcp.event.9.1/0",
    ]
    delivered = [parse_event_request(asked.input_json) for asked in script.asked[1:]]
    assert [(d.source, d.parent_sequence, d.event_index, d.event_json) for d in delivered] == [
        ("mcp", 9, 0, '{"n":1}'),
        ("mcp", 9, 1, '{"n":2}'),
    ]


DEEP = '{"a":' * 65 + "1" + "}" * 65


@pytest.mark.parametrize(
    ("event", "deliver", "message"),
    [
        ('{"n":1}', False, "nobody asked for"),
        ("[1]", True, "not a JSON object"),
        (DEEP, True, "over 64 levels"),
        ('{"a":"' + "x" * (1024**2 + 1) + '"}', True, "value of"),
    ],
    ids=["unasked", "no-object", "deep", "large"],
)
def test_events_that_no_server_may_send_are_refused(
    event: str, deliver: bool, message: str
) -> None:
    script = Script(McpResponse(result_json="{}", events_json=(event,)))

    async def main() -> None:
        client = McpClient(script.binding(), DurableRequestSequence())
        with pytest.raises(InvalidMcpResponse, match=message):
            await client.request("ping", deliver_events=deliver)

    run(main())
    assert len(script.asked) == 1


def test_a_collection_without_an_end_is_given_up() -> None:
    script = Script(McpResponse(result_json='{"tools":[],"nextCursor":"more"}'))

    async def main() -> None:
        client = McpClient(script.binding(), DurableRequestSequence())
        with pytest.raises(InvalidMcpResponse, match="goes on after 1000 pages"):
            await client.list_tools()

    run(main())
    params = [parse_mcp_request(asked.input_json).params_json for asked in script.asked]
    assert params == ["{}"] + ['{"cursor":"more"}'] * 999


def test_a_direct_request_is_refused_as_a_durable_one_is() -> None:
    async def main() -> None:
        client = McpClient(direct=Script(), options=SECRET)
        with pytest.raises(SensitiveMcpHeader):
            await client.request("ping")

    run(main())


@pytest.mark.parametrize("missing", ["mcp", "mcp_types", "httpx2"])
def test_without_the_client_the_adapter_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.adapters.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[mcp\]'"):
        importlib.import_module("perdure.adapters.mcp")
