from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure import Context, RunFailed, RunNeedsAttention
from perdure.adapters.mcp import HttpServer, McpClient, McpOptions, McpWorker
from perdure.journal.payloads import Header
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, in_time, once, run, sql
from tests.mcp_parcels import Desk, Parcels

URL = "http://parcels.test/mcp"


class Site(httpx2.AsyncBaseTransport):
    """Serves parcels without a network, and fails as networks and servers do."""

    def __init__(self, *, legacy: bool = False) -> None:
        self.parcels = Parcels()
        self.seen: list[httpx2.Request] = []
        self.before: Exception | int | None = None
        self.cuts = 0
        self.forgets = False
        self.app = self.parcels.server.streamable_http_app(
            json_response=True, stateless_http=not legacy
        )
        self._inner = httpx2.ASGITransport(self.app)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=8000)
        request.headers["host"] = "127.0.0.1:8000"
        self.seen.append(request)
        calling = b'"tools/call"' in request.content
        if calling and self.forgets:
            self.forgets = False
            return httpx2.Response(404, text="no such session")
        if calling and isinstance(self.before, int):
            return httpx2.Response(self.before, text="no")
        if calling and self.before is not None:
            raise self.before
        response = await self._inner.handle_async_request(request)
        if calling and self.cuts:
            self.cuts -= 1
            raise CUT
        return response

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with self.app.router.lifespan_context(self.app):
            yield

    def worker(self, options: McpOptions | None = None, **server: Any) -> McpWorker:
        reached = HttpServer(URL, transport=self, **server)
        return McpWorker(reached, trusted=True, options=options)


def ask(folder: Path, site: Site, worker: McpWorker, work: Any, **options: Any) -> Any:
    app = app_on(folder, clock=(clock := ManualClock()))
    desk = Desk(worker)

    @app.run(version=1)
    async def ask_server(context: Context) -> Any:
        return await work(desk.client(context, **options))

    async def main() -> Any:
        async with site.running():
            try:
                return await in_time(clock, once(app, ask_server))
            except (RunFailed, RunNeedsAttention) as ended:
                return ended.code

    return run(main())


def receipts(folder: Path) -> list[Any]:
    return sql(folder, "SELECT target, state FROM receipts ORDER BY operation_key")


async def send(client: McpClient) -> Any:
    return json.loads((await client.call_tool("send", {"city": "Oslo"})).model_dump_json())


async def track(client: McpClient) -> None:
    await client.call_tool("track", {"city": "Oslo"})


@pytest.mark.parametrize("legacy", [False, True], ids=["modern", "legacy"])
def test_credentials_go_with_each_request_and_stand_nowhere_else(
    tmp_path: Path, legacy: bool
) -> None:
    site = Site(legacy=legacy)
    worker = site.worker(McpOptions(legacy=legacy), headers={"authorization": "Bearer s3cret"})
    ask(tmp_path, site, worker, send, headers=(Header("x-office", "north"),))
    assert {request.headers["authorization"] for request in site.seen} == {"Bearer s3cret"}
    called = [request for request in site.seen if b'"tools/call"' in request.content]
    assert [request.headers.get("x-office") for request in called] == ["north"]
    assert "s3cret" not in repr(worker) + repr(HttpServer(URL, headers={"a": "s3cret"}))
    for file in tmp_path.iterdir():
        assert b"s3cret" not in file.read_bytes()
    assert receipts(tmp_path) == [("parcels.send", "completed")]


REFUSED = httpx2.ConnectError("refused")
CUT = httpx2.RemoteProtocolError("cut")


@pytest.mark.parametrize(
    ("before", "cuts", "code", "state", "calls"),
    [
        (REFUSED, 0, "EffectNotSent", "failed", 0),
        (404, 0, "EffectRejected", "failed", 0),
        (403, 0, "EffectRejected", "failed", 0),
        (429, 0, "EffectNotSent", "failed", 0),
        (500, 0, "EffectAmbiguous", "ambiguous", 0),
        (CUT, 0, "EffectAmbiguous", "ambiguous", 0),
        (None, 1, "EffectAmbiguous", "ambiguous", 1),
    ],
    ids=["refused", "404", "403", "429", "500", "cut-before", "cut-after"],
)
def test_what_went_wrong_on_the_way_tells_whether_anything_was_sent(
    tmp_path: Path, before: Any, cuts: int, code: str, state: str, calls: int
) -> None:
    site = Site()
    site.before, site.cuts = before, cuts
    assert ask(tmp_path, site, site.worker(), send) == code
    assert receipts(tmp_path) == [("parcels.send", state)]
    assert len(site.parcels.calls) == calls


def test_a_server_that_has_forgotten_the_session_took_nothing(tmp_path: Path) -> None:
    site = Site(legacy=True)
    worker = site.worker(McpOptions(legacy=True))

    async def work(client: McpClient) -> None:
        async with worker:
            await client.list_tools()
            site.forgets = True
            await send(client)

    ask(tmp_path, site, worker, work)
    assert site.parcels.calls == [("send", "Oslo")]
    assert sum(b'"initialize"' in request.content for request in site.seen) == 2
    assert receipts(tmp_path) == [("parcels.send", "completed")]


def test_a_read_that_a_server_could_not_answer_is_asked_again(tmp_path: Path) -> None:
    site = Site()
    site.before = 500

    async def work(client: McpClient) -> None:
        await client.list_tools()
        mending = asyncio.get_running_loop().create_task(mend())
        await track(client)
        await mending

    async def mend() -> None:
        while not any(b'"tools/call"' in request.content for request in site.seen):
            await asyncio.sleep(0)
        site.before = None

    ask(tmp_path, site, site.worker(), work)
    assert site.parcels.calls == [("track", "Oslo")]


def test_a_read_that_was_cut_is_asked_again(tmp_path: Path) -> None:
    site = Site()
    worker = site.worker()

    async def work(client: McpClient) -> None:
        async with worker:
            await client.list_tools()
            site.cuts = 1
            await track(client)
            await send(client)

    ask(tmp_path, site, worker, work)
    assert [tool for tool, _ in site.parcels.calls] == ["track", "track", "send"]


def test_a_request_that_is_cut_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    site = Site()
    worker = site.worker(McpOptions(retry=None))
    held = asyncio.Event()

    @site.parcels.server.tool()
    async def wait() -> str:
        held.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        async with site.running(), worker:
            direct = McpClient(direct=worker)
            waiting = asyncio.ensure_future(direct.call_tool("wait"))
            await held.wait()
            site.cuts = 1
            with pytest.raises(ConnectionError):
                await send(direct)
            assert (await direct.call_tool("track", {"city": "Oslo"})).is_error is False
            assert not waiting.done()
            waiting.cancel()

    run(main())
