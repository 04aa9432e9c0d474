"""An App whose sessions are served over real sockets, and what a test says to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from perdure import App
from perdure.server import Authorize, Grant, Limits, create_server
from perdure.server.running import HttpServer
from tests.harness import app_on, run

GRANTS = {
    "alice": Grant(client_id="alice", sessions=("s1", "shop-*")),
    "bob": Grant(client_id="bob", sessions=("s1",)),
    "reader": Grant(client_id="reader", sessions=("s1",), write=False),
}


SAY = "/sessions/s1/input"
CHAT = {
    "id": "s1",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
}


class Script:
    """What the agent of a test says: chunks, given one by one while it streams them."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[str] = []

    def say(self, *chunks: Any) -> None:
        """Let the agent put out chunks; None ends what it streams, an error makes it fail."""
        for chunk in chunks:
            self.queue.put_nowait(chunk)

    async def read(self) -> AsyncGenerator[Any]:
        while (chunk := await self.queue.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def scripted(folder: Path) -> tuple[App, Script]:
    """Return an App whose only turn streams what the script says."""
    app, script = app_on(folder), Script()

    @app.turn(version=1)
    async def answer(context: Any, turn: Any) -> str:
        script.asked.append(await turn.text())
        return await turn.stream(script.read)

    return app, script


class Served:
    """A server that is asked as alice unless told otherwise."""

    def __init__(self, http: HttpServer, client: httpx.AsyncClient, server: Any) -> None:
        self.http = http
        self.client = client
        self.server = server

    async def get(self, path: str, token: str | None = "alice", **options: Any) -> httpx.Response:
        return await self.client.get(path, headers=_headers(token), **options)

    async def post(
        self, path: str, document: Any = None, token: str | None = "alice", **options: Any
    ) -> httpx.Response:
        options.setdefault("json", document or {})
        headers = {**_headers(token), **options.pop("headers", {})}
        return await self.client.post(path, headers=headers, **options)

    @asynccontextmanager
    async def stream(
        self, path: str, document: Any = None, token: str | None = "alice", **headers: str
    ) -> AsyncGenerator[Stream]:
        """Open a stream: a GET, or with a document a POST."""
        method = "GET" if document is None else "POST"
        given = _headers(token) | {name.replace("_", "-"): text for name, text in headers.items()}
        async with self.client.stream(method, path, headers=given, json=document) as response:
            yield Stream(response)


class Stream:
    """The frames of a response, one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def frame(self) -> dict[str, str]:
        """Return the fields of the next frame; {} at the end. Comments are one with a `:`."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                return fields
            name, _, text = line.partition(":")
            fields[name or ":"] = text.strip()
        return fields

    async def event(self) -> Any:
        """Return the data of the next frame that has any; None at the end."""
        while frame := await self.frame():
            if "data" in frame:
                return frame["data"] if frame["data"] == "[DONE]" else json.loads(frame["data"])
        return None

    async def until(self, kind: str) -> list[Any]:
        """Return the chunks up to one of a type."""
        found: list[Any] = []
        while not found or found[-1].get("type") != kind:
            chunk = await self.event()
            assert isinstance(chunk, dict), f"{kind} never came, but {found} and {chunk}"
            found.append(chunk)
        return found

    async def rest(self) -> list[Any]:
        """Return what is left, to the end."""
        found: list[Any] = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def served(
    app: App,
    *,
    authorize: Authorize = GRANTS.get,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve an App on a port of this machine."""
    server = create_server(app, authorize=authorize, limits=limits, **options)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    http = HttpServer(
        server, host="127.0.0.1", port=0, drain_seconds=2.0, started=address.set_result
    )
    serving = asyncio.create_task(http.serve())
    await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
    try:
        async with httpx.AsyncClient(base_url=address.result(), timeout=60) as client:
            yield Served(http, client, server)
    finally:
        http.should_exit = True
        await serving


async def ended(it: Served, run_id: str, status: str) -> None:
    """Return once the session says that a run has come to this."""
    found: dict[str, str] = {}
    while found.get(run_id) != status:
        page = (await it.get("/sessions/s1/messages")).json()
        found = {run["runId"]: run["status"] for run in page["runs"]}


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


def visited(folder: Path, scene: Callable[[Served, App], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        app = app_on(folder)

        @app.turn(version=1)
        async def answer(context: Any, turn: Any) -> None: ...

        async with served(app, works=False, **options) as it:
            await scene(it, app)

    run(main())


async def refused(response: Any, status: int, code: str) -> str:
    """Check that a request was refused, and return what it was told."""
    answer = await response
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["message"]


def address(it: Served) -> tuple[str, int]:
    return it.client.base_url.host, it.client.base_url.port or 80


async def untouched(app: App) -> None:
    """Check that nothing was written to the session."""
    assert (await app.channel("s1", "test").history()).messages == []
    assert await app.list() == []
