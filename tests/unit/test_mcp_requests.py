from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.server.mcpserver import Context as ToolContext
from mcp.types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)
from pydantic import BaseModel

from perdure import Context, OperationFailed, OperationIdentity, RunNeedsAttention
from perdure.adapters.mcp import Answers, McpClient, McpOptions, McpWorker
from perdure.declaration import EffectDeclaration
from perdure.effects.answer import Answer, Landed
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.journal.payloads import LogLevel, McpMetadata, ProgressToken
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Pause, app_on, finish, in_time, interrupt, keys, once, run, sql
from tests.mcp_parcels import Desk, Parcels, Scripted

LEGACY = McpOptions(legacy=True)


class Floor(BaseModel):
    floor: int


def serve_questions(parcels: Parcels) -> None:
    """Have a tool that asks back as often as it is told to."""

    @parcels.server.tool()
    async def deliver(questions: int, ctx: ToolContext) -> str | InputRequiredResult:
        if ctx.protocol_version != "2026-07-28":
            for _ in range(questions):
                await ctx.elicit("which floor?", Floor)
            return "floor 3"
        asked = int(ctx.request_state or "0")
        if asked == questions:
            (given,) = (ctx.input_responses or {}).values()
            assert isinstance(given, ElicitResult)
            return f"floor {(given.content or {})['floor']}"
        schema = Floor.model_json_schema()
        params = ElicitRequestFormParams(message="which floor?", requested_schema=schema)
        asking = {"floor": ElicitRequest(params=params)}
        return InputRequiredResult(input_requests=asking, request_state=str(asked + 1))


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def ask(folder: Path, desk: Desk, work: Callable[[McpClient], Any], **options: Any) -> Any:
    """Do work with a client in a run, and return what it returns."""
    app = app_on(folder, clock=(clock := ManualClock()))

    @app.run(version=1)
    async def ask_server(context: Context) -> Any:
        return await work(desk.client(context, **options))

    return run(in_time(clock, once(app, ask_server)))


def receipts(folder: Path) -> list[Any]:
    return sql(folder, "SELECT target, support, state FROM receipts ORDER BY operation_key")


@pytest.mark.parametrize("options", [None, LEGACY], ids=["modern", "legacy"])
def test_a_run_asks_once_and_a_replay_asks_nobody(
    tmp_path: Path, options: McpOptions | None
) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect, trusted=True, options=options))
    app = app_on(tmp_path)
    opened: list[int] = []

    async def main() -> Any:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> Any:
            client = desk.client(context, first=100)
            names = [tool.name for tool in await client.list_tools()]
            quote = await client.call_tool("quote", {"city": "Oslo"})
            sent = await client.call_tool("send", {"city": "Oslo", "note": None})
            opened.append(parcels.opened)
            await pause()
            return [names, quote.structured_content, text(sent)]

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == [["send", "quote", "track"], {"euros": 8}, "it is in Oslo, None"]
    assert parcels.calls == [("quote", "Oslo"), ("send", "Oslo")]
    assert run(keys(app)) == [("mcp.request", n) for n in (100, 101, 102)]
    assert len(set(opened)) == 1
    assert sorted(receipts(tmp_path)) == [
        ("parcels.quote", "idempotent", "completed"),
        ("parcels.send", "at_least_once", "completed"),
    ]
    stored = sql(tmp_path, "SELECT operation_key FROM receipts")
    assert sorted(key for (key,) in stored) == sorted(filter(None, parcels.keys))


def test_a_list_that_changes_after_it_was_recorded_stands_as_it_was(tmp_path: Path) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect))
    app = app_on(tmp_path)

    async def main() -> Any:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> Any:
            client = desk.client(context)
            before = [tool.name for tool in await client.list_tools()]
            await pause()
            return [before, [tool.name for tool in await client.list_tools()]]

        await interrupt(app, pause, work)
        parcels.server.remove_tool("quote")
        return await finish(app)

    assert run(main()) == [["send", "quote", "track"], ["send", "track"]]


def test_an_input_that_changed_parks_the_run(tmp_path: Path) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect))
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> None:
            city = "Rome" if pause.open else "Oslo"
            await desk.client(context).call_tool("send", {"city": city})
            await pause()

        await interrupt(app, pause, work)
        with pytest.raises(RunNeedsAttention, match=f"{RUN}/mcp.request/1") as caught:
            await finish(app)
        assert caught.value.code == "ReplayMismatch"

    run(main())
    assert parcels.calls == [("send", "Oslo")]


def test_resources_and_prompts_are_read(tmp_path: Path) -> None:
    parcels = Parcels()

    @parcels.server.resource("depot://oslo")
    def depot() -> str:
        return "open"

    @parcels.server.resource("depot://{city}/hours")
    def hours(city: str) -> str:
        return f"{city}: nine to five"

    @parcels.server.prompt()
    def label(city: str) -> str:
        return f"to {city}"

    async def work(client: McpClient) -> Any:
        read = await client.read_resource("depot://rome/hours")
        prompt = await client.get_prompt("label", {"city": "Oslo"})
        return [
            [str(resource.uri) for resource in await client.list_resources()],
            [template.uri_template for template in await client.list_resource_templates()],
            [prompt.name for prompt in await client.list_prompts()],
            json.loads(read.contents[0].model_dump_json())["text"],
            json.loads(prompt.messages[0].content.model_dump_json())["text"],
        ]

    assert ask(tmp_path, Desk(McpWorker(parcels.connect)), work) == [
        ["depot://oslo"],
        ["depot://{city}/hours"],
        ["label"],
        "rome: nine to five",
        "to Oslo",
    ]
    assert receipts(tmp_path) == []


ONLY_READS = {"send": None}
IDEMPOTENT = {"send": EffectPolicy(support=SideEffectSupport.IDEMPOTENT, target="depot")}


@pytest.mark.parametrize(
    ("tool", "trusted", "tools", "expected"),
    [
        ("send", False, {}, [("parcels.send", "at_least_once", "completed")]),
        ("quote", False, {}, [("parcels.quote", "at_least_once", "completed")]),
        ("track", False, {}, [("parcels.track", "at_least_once", "completed")]),
        ("send", True, {}, [("parcels.send", "at_least_once", "completed")]),
        ("quote", True, {}, [("parcels.quote", "idempotent", "completed")]),
        ("track", True, {}, []),
        ("send", False, ONLY_READS, []),
        ("send", True, IDEMPOTENT, [("depot", "idempotent", "completed")]),
    ],
)
def test_what_a_tool_does_is_as_declared_or_as_a_trusted_server_says(
    tmp_path: Path, tool: str, trusted: bool, tools: dict[str, Any], expected: list[Any]
) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect, trusted=trusted, tools=tools))
    ask(tmp_path, desk, lambda client: _call(client, tool))
    assert receipts(tmp_path) == expected
    # Who only reads is given no key.
    assert [key is not None for key in parcels.keys] == [bool(expected)]


async def _call(client: McpClient, tool: str, city: str = "Oslo") -> None:
    await client.call_tool(tool, {"city": city})


@pytest.mark.parametrize(
    ("trusted", "code", "state"),
    [(True, "EffectRejected", "failed"), (False, "EffectAmbiguous", "ambiguous")],
)
def test_arguments_that_a_server_refuses_were_refused_if_it_is_trusted(
    tmp_path: Path, trusted: bool, code: str, state: str
) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect, trusted=trusted))

    async def work(client: McpClient) -> Any:
        try:
            await client.request("tools/call", {"name": 7})
        except OperationFailed as failed:
            return [failed.code, failed.data]

    if trusted:
        said = {"code": -32602, "message": "Invalid request parameters", "status": None}
        assert ask(tmp_path, desk, work) == [code, said]
    else:
        with pytest.raises(RunNeedsAttention) as caught:
            ask(tmp_path, desk, work)
        assert caught.value.code == code
    assert receipts(tmp_path) == [("parcels.tools/call", "at_least_once", state)]


def test_a_method_that_a_server_does_not_know_was_refused(tmp_path: Path) -> None:
    async def work(client: McpClient) -> Any:
        with pytest.raises(OperationFailed) as read:
            await client.request("prompts/list", {"cursor": 7})
        with pytest.raises(OperationFailed) as written:
            await client.request("parcels/burn")
        return [read.value.code, written.value.code]

    desk = Desk(McpWorker(Parcels().connect))
    assert ask(tmp_path, desk, work) == ["McpError", "EffectRejected"]
    assert receipts(tmp_path) == [("parcels.parcels/burn", "at_least_once", "failed")]


def test_a_tool_that_says_it_failed_has_answered_and_nobody_knows_what_it_did(
    tmp_path: Path,
) -> None:
    async def work(client: McpClient) -> Any:
        result = await client.call_tool("send", {"city": "Atlantis"})
        return [result.is_error, text(result)]

    desk = Desk(McpWorker(Parcels().connect))
    assert ask(tmp_path, desk, work) == [True, "Error executing tool send"]
    assert receipts(tmp_path) == [("parcels.send", "at_least_once", "ambiguous")]


def test_a_server_that_cannot_be_reached_got_nothing_and_is_tried_again(tmp_path: Path) -> None:
    parcels = Parcels()
    attempts = 0

    def connect() -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise OSError("no such program")
        return parcels.connect()

    ask(tmp_path, Desk(McpWorker(connect)), lambda client: _call(client, "send"))
    assert receipts(tmp_path) == [("parcels.send", "at_least_once", "completed")]

    async def work(client: McpClient) -> Any:
        with pytest.raises(OperationFailed, match="no such program") as failed:
            await client.call_tool("send", {"city": "Oslo"})
        return failed.value.code

    attempts = -10
    (tmp_path / "again").mkdir()
    assert ask(tmp_path / "again", Desk(McpWorker(connect)), work) == "EffectNotSent"
    assert receipts(tmp_path / "again") == [("parcels.send", "at_least_once", "failed")]
    assert parcels.calls == [("send", "Oslo")]


def test_a_connection_that_is_lost_leaves_reads_to_be_repeated_and_effects_in_doubt(
    tmp_path: Path,
) -> None:
    parcels = Parcels()
    desk = Desk(McpWorker(parcels.connect, trusted=True))

    async def work(client: McpClient) -> Any:
        parcels.hangs_up = 2
        tracked = text(await client.call_tool("track", {"city": "Oslo"}))
        assert (tracked, len(parcels.calls)) == ("on its way", 3)
        parcels.hangs_up = 1
        await client.call_tool("send", {"city": "Oslo"})

    with pytest.raises(RunNeedsAttention, match="no answer of the MCP server") as caught:
        ask(tmp_path, desk, work)
    assert caught.value.code == "EffectAmbiguous"
    assert parcels.calls[3:] == [("send", "Oslo")]
    assert receipts(tmp_path) == [("parcels.send", "at_least_once", "ambiguous")]


def test_a_server_that_takes_too_long_gave_no_answer(tmp_path: Path) -> None:
    parcels = Parcels()

    async def ponder() -> str:
        await asyncio.Event().wait()
        return "never"

    parcels.server.add_tool(ponder)
    options = McpOptions(timeout_seconds=0.5, retry=None)
    desk = Desk(McpWorker(parcels.connect, tools={"ponder": None}, options=options))

    async def work(client: McpClient) -> Any:
        with pytest.raises(OperationFailed, match="in time") as failed:
            await client.call_tool("ponder")
        return failed.value.code

    assert ask(tmp_path, desk, work) == "TimeoutError"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"euros": 5}, {"structuredContent": {"euros": 5}, "content": '{"euros":5}'}),
        ("by hand", {"content": "by hand"}),
        ({"content": [{"type": "text", "text": "as it was"}]}, {"content": "as it was"}),
    ],
)
def test_what_a_lookup_says_becomes_the_result(
    tmp_path: Path, answer: Any, result: dict[str, Any]
) -> None:
    parcels = Parcels()
    parcels.hangs_up = 1

    async def find(identity: OperationIdentity) -> Answer:
        assert parcels.keys == [identity.operation_key]
        return Landed(answer)

    policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE)
    tools = {"send": EffectDeclaration(policy=policy, lookup=find)}

    async def work(client: McpClient) -> Any:
        sent = await client.call_tool("send", {"city": "Oslo"})
        structured = (
            {}
            if sent.structured_content is None
            else {"structuredContent": sent.structured_content}
        )
        return {**structured, "content": text(sent)}

    assert ask(tmp_path, Desk(McpWorker(parcels.connect, tools=tools)), work) == result
    assert parcels.calls == [("send", "Oslo")]
    assert receipts(tmp_path) == [("parcels.send", "outcome_queryable", "completed")]


def test_a_result_that_is_too_large_was_applied_all_the_same(tmp_path: Path) -> None:
    parcels = Parcels()

    async def work(client: McpClient) -> Any:
        note = "x" * 1024 * 1024
        with pytest.raises(OperationFailed) as failed:
            await client.call_tool("send", {"city": "Oslo", "note": note})
        return failed.value.code

    assert ask(tmp_path, Desk(McpWorker(parcels.connect)), work) == "InvalidMcpResponse"
    assert receipts(tmp_path) == [("parcels.send", "at_least_once", "completed")]


def test_a_connection_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        await asyncio.Event().wait()
        yield

    options = McpOptions(connect_seconds=0.01, retry=None)

    async def work(client: McpClient) -> Any:
        with pytest.raises(OperationFailed, match=r"took over 0\.01 seconds") as failed:
            await client.list_tools()
        return failed.value.code

    assert ask(tmp_path, Desk(McpWorker(connect, options=options)), work) == "EffectNotSent"


@pytest.mark.parametrize("lost", [False, True])
def test_an_open_worker_keeps_its_connection_until_it_is_lost(tmp_path: Path, lost: bool) -> None:
    parcels = Parcels()
    worker = McpWorker(parcels.connect, trusted=True)

    async def work(client: McpClient) -> Any:
        async with worker:
            await client.list_tools()
            parcels.hangs_up = int(lost)
            for _ in range(2):
                await client.call_tool("track", {"city": "Oslo"})
            assert parcels.closed == lost
        return [parcels.opened, parcels.closed]

    assert ask(tmp_path, Desk(worker), work) == [1 + lost] * 2


@pytest.mark.parametrize("options", [McpOptions(), LEGACY], ids=["modern", "legacy"])
def test_what_a_server_asks_back_is_answered_at_the_worker_within_one_operation(
    tmp_path: Path, options: McpOptions
) -> None:
    parcels = Parcels()
    asked: list[str] = []
    serve_questions(parcels)

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        asked.append(params.message)
        return ElicitResult(action="accept", content={"floor": 3})

    options = msgspec.structs.replace(options, answers=Answers(elicitation=answer))

    worker = McpWorker(parcels.connect, options=options)

    async def work(client: McpClient) -> Any:
        async with worker:
            calls = [await client.call_tool("deliver", {"questions": 2}) for _ in range(2)]
        return [text(result) for result in calls]

    assert ask(tmp_path, Desk(worker), work, max_round_trips=2) == ["floor 3"] * 2
    assert asked == ["which floor?"] * 4
    numbers = sql(tmp_path, "SELECT step_id, sequence FROM records ORDER BY sequence")
    assert numbers == [("mcp.request", 1), ("mcp.request", 2)]


@pytest.mark.parametrize("options", [McpOptions(), LEGACY], ids=["modern", "legacy"])
def test_a_server_that_asks_back_too_often_gets_no_answer(
    tmp_path: Path, options: McpOptions
) -> None:
    parcels = Parcels()
    answered = 0
    serve_questions(parcels)

    async def answer(context: Any, params: Any) -> ElicitResult:
        nonlocal answered
        answered += 1
        return ElicitResult(action="accept", content={"floor": 3})

    async def work(client: McpClient) -> None:
        await client.call_tool("deliver", {"questions": 3})

    options = msgspec.structs.replace(options, answers=Answers(elicitation=answer))
    desk = Desk(McpWorker(parcels.connect, options=options))
    with pytest.raises(RunNeedsAttention, match="asked back"):
        ask(tmp_path, desk, work, max_round_trips=2)
    assert answered == 2
    assert receipts(tmp_path) == [("parcels.deliver", "at_least_once", "ambiguous")]


CALLED = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
ASKS = {"resultType": "input_required", "requestState": "1"}


def scripted(*answers: Any) -> Scripted:
    """Return a server that answers its calls one after another, and lists no tools."""
    left = [*answers]
    listed = {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}

    def answer(method: str, params: Any) -> Any:
        if method == "tools/call":
            return left.pop(0)
        return listed if method == "tools/list" else None

    return Scripted(answer)


CALL, LIST = "tools/call", "tools/list"


@pytest.mark.parametrize(
    ("answers", "ending", "state", "asked"),
    [
        ([-32020, CALLED], "done", "completed", [CALL, LIST, CALL]),
        ([-32020, -32601], "EffectRejected", "failed", [CALL, LIST, CALL]),
        ([-32020, -32020], "EffectRejected", "failed", [CALL, LIST, CALL]),
        ([ASKS, CALLED], "done", "completed", [CALL, CALL]),
        ([ASKS, -32601], "EffectAmbiguous", "ambiguous", [CALL, CALL]),
        ([-32603], "EffectAmbiguous", "ambiguous", [CALL]),
        ([Scripted.HANG_UP], "EffectAmbiguous", "ambiguous", [CALL]),
    ],
    ids=["headers", "unknown", "still", "round", "round-refused", "error", "lost"],
)
def test_what_a_server_answers_tells_whether_it_did_anything(
    tmp_path: Path, answers: list[Any], ending: str, state: str, asked: list[str]
) -> None:
    server = scripted(*answers)

    async def work(client: McpClient) -> Any:
        try:
            return text(await client.call_tool("send"))
        except OperationFailed as failed:
            return failed.code

    try:
        ended = ask(tmp_path, Desk(McpWorker(server.connect)), work)
    except RunNeedsAttention as parked:
        ended = parked.code
    assert ended == ending
    assert server.methods == asked
    assert receipts(tmp_path) == [("parcels.send", "at_least_once", state)]


def test_what_goes_along_with_a_request_reaches_the_server_and_who_answers_is_not_recorded(
    tmp_path: Path,
) -> None:
    named = {"io.modelcontextprotocol/serverInfo": {"name": "north", "version": "1"}, "mine": 1}
    server = scripted({**CALLED, "_meta": named})
    metadata = McpMetadata(
        progress_token=ProgressToken(integer=7),
        log_level=LogLevel.ERROR,
        traceparent="00-a-b-01",
        tracestate="t=1",
        baggage="b=2",
    )
    capabilities = {"extensions": {"com.example/parcels": {"size": 2}}}

    async def work(client: McpClient) -> Any:
        params = {"name": "send", "_meta": {"com.example/mine": 1}}
        return (await client.request("tools/call", params))["_meta"]

    told = ask(
        tmp_path,
        Desk(McpWorker(server.connect)),
        work,
        metadata=metadata,
        capabilities=capabilities,
        name="desk",
    )
    assert told == {"mine": 1}
    meta = server.asked[-1][1]["_meta"]
    sent = {
        "progressToken": 7,
        "io.modelcontextprotocol/logLevel": "error",
        "traceparent": "00-a-b-01",
        "tracestate": "t=1",
        "baggage": "b=2",
        "com.example/mine": 1,
    }
    assert sent.items() <= meta.items()
    assert meta["io.modelcontextprotocol/clientInfo"] == {"name": "desk", "version": "1"}
    declared = meta["io.modelcontextprotocol/clientCapabilities"]
    assert declared["extensions"] == capabilities["extensions"]
