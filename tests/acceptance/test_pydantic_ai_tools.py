"""What becomes of a tool call whose process died, or whose connection, after it had its effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import RunNeedsAttention
from perdure.cli import main
from tests.acceptance import tool_turn
from tests.acceptance.children import notes, query, run, running, until
from tests.acceptance.mcp_counter import serve

PAID = {"paid": 5}


def ended(folder: Path) -> Any:
    return json.loads((folder / "ended.json").read_text())


def receipts(folder: Path) -> list[tuple[Any, ...]]:
    columns = "operation_key, target, support, state, version"
    return query(folder / "runs.db", f"SELECT {columns} FROM receipts")


def kill(folder: Path, program: Any, *arguments: Any) -> None:
    with running(folder, program, folder, *arguments, True) as child:
        child.die()
    assert len(notes(folder / "effects.log")) == 1


def settle(folder: Path, landed: object, capsys: pytest.CaptureFixture[str]) -> None:
    ((key, _, _, state, version),) = receipts(folder)
    assert state == "ambiguous"
    words = ["--landed", json.dumps(landed), "--why", "it is on the statement", "--by", "ada"]
    url = f"sqlite:///{folder}/runs.db"
    command = ["effects", "settle", key, *words, "--expect-version", str(version), "--url", url]
    assert main(command) == 0, capsys.readouterr()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve MCP for every scenario."""
    announced = tmp_path_factory.mktemp("mcp") / "url"
    with running(announced.parent, serve, announced) as server:
        until(announced.exists, server)
        yield announced.read_text()


# --- killed between the effect and its record ----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "told", "calls", "state"),
    [
        ("idempotent", PAID, 2, "completed"),
        ("queryable", PAID, 1, "completed"),
        ("read_only", PAID, 2, None),
        ("tell", None, 1, "ambiguous"),
    ],
)
def test_a_killed_call_goes_on_as_its_tool_declares(
    tmp_path: Path, kind: str, told: Any, calls: int, state: str | None
) -> None:
    kill(tmp_path, tool_turn.use_function, kind)
    run(tmp_path, tool_turn.use_function, tmp_path, kind, False)
    (heard,) = ended(tmp_path)["told"]
    assert heard == told or (told is None and heard["outcome"] == "unknown")
    paid = notes(tmp_path / "effects.log")
    assert len(paid) == calls
    assert len({line.get("key") for line in paid}) == 1
    assert [row[3] for row in receipts(tmp_path)] == ([] if state is None else [state])


def test_a_killed_call_of_which_nobody_knows_waits_for_a_person_and_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(tmp_path, tool_turn.use_function, "default")
    run(tmp_path, tool_turn.use_function, tmp_path, "default", False)
    assert ended(tmp_path) == {"parked": "EffectAmbiguous"}
    settle(tmp_path, {"paid": 5, "by": "hand"}, capsys)
    run(tmp_path, tool_turn.use_function, tmp_path, "default", False)
    assert ended(tmp_path) == {"told": [{"paid": 5, "by": "hand"}]}
    assert len(notes(tmp_path / "effects.log")) == 1


@pytest.mark.parametrize(
    ("tool", "trusted", "calls"),
    [("track", ["parcels"], 2), ("quote", ["parcels"], 2), ("quote", [], 1), ("send", [], 1)],
)
def test_a_killed_call_of_a_server_goes_on_as_a_trusted_server_says(
    tmp_path: Path, url: str, tool: str, trusted: list[str], calls: int
) -> None:
    """T26."""
    kill(tmp_path, tool_turn.use_server, url, tool, trusted)
    run(tmp_path, tool_turn.use_server, tmp_path, url, tool, trusted, False)
    sent = notes(tmp_path / "effects.log", effect=tool)
    assert len(sent) == calls
    assert len({line["key"] for line in sent}) == 1
    if calls == 1:
        assert ended(tmp_path) == {"parked": "EffectAmbiguous"}
        assert [row[1:4] for row in receipts(tmp_path)] == [
            (f"parcels.{tool}", "at_least_once", "ambiguous")
        ]
    else:
        assert ended(tmp_path) == {"told": ["Oslo: 8 EUR"]}
        expected = [] if tool == "track" else [("parcels.quote", "idempotent", "completed")]
        assert [row[1:4] for row in receipts(tmp_path)] == expected


def test_a_killed_call_of_a_server_is_settled_by_what_a_person_saw(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(tmp_path, tool_turn.use_server, url, "send", [])
    run(tmp_path, tool_turn.use_server, tmp_path, url, "send", [], False)
    settle(tmp_path, "it is in Oslo", capsys)
    run(tmp_path, tool_turn.use_server, tmp_path, url, "send", [], False)
    assert ended(tmp_path) == {"told": ["it is in Oslo"]}
    assert len(notes(tmp_path / "effects.log")) == 1


# --- a connection that is lost after the effect --------------------------------------------------


class Line:
    """Stands between a client and a server, and drops the answer to the first call."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._dropped = False
        # Nobody else holds what waits for a server after its client has gone.
        self._carrying: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncGenerator[str]:
        """Listen, and yield the URL to call instead of the server's."""
        async with await asyncio.start_server(self._begin, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            try:
                yield f"http://127.0.0.1:{port}{self._server.path}"
            finally:
                for task in self._carrying:
                    task.cancel()
                await asyncio.gather(*self._carrying, return_exceptions=True)

    def _begin(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(near, out))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        async with closed(out):
            far, on = await asyncio.open_connection(self._server.hostname, self._server.port)
            async with closed(on):
                await self._exchange(near, out, far, on)

    async def _exchange(
        self,
        near: asyncio.StreamReader,
        out: asyncio.StreamWriter,
        far: asyncio.StreamReader,
        on: asyncio.StreamWriter,
    ) -> None:
        calling = False

        async def ask() -> None:
            nonlocal calling
            while data := await near.read(65536):
                calling = calling or b'"tools/call"' in data
                on.write(data)
            on.close()  # the client has gone

        asking = asyncio.create_task(ask())
        try:
            while data := await far.read(65536):
                if calling and not self._dropped:
                    self._dropped = True
                    break
                out.write(data)
        finally:
            asking.cancel()


@asynccontextmanager
async def closed(writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
    """Close a connection in the end, and wait until it is."""
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def take_turn(
    folder: Path, url: str, tool: str, trusted: list[str], *, tell: bool = False
) -> Any:
    """Return what the model was told over a line that drops, or why the run is parked."""
    async with Line(url).laid() as line:
        agent = tool_turn.server_agent(folder, line, tool, trusted, tell=tell)
        app, turn = tool_turn.app_of(folder, agent)
        async with app:
            try:
                return await (await app.start(turn, run_id=tool_turn.RUN_ID)).result()
            except RunNeedsAttention as parked:
                return parked.code


@pytest.mark.parametrize(
    ("tool", "trusted", "calls"),
    [("track", ["parcels"], 2), ("quote", ["parcels"], 2), ("quote", [], 1), ("send", [], 1)],
)
def test_a_call_whose_connection_is_lost_is_made_again_only_where_that_does_no_harm(
    tmp_path: Path, url: str, tool: str, trusted: list[str], calls: int
) -> None:
    """T25: on a new connection, in the same execution of the run."""

    told = asyncio.run(take_turn(tmp_path, url, tool, trusted))
    sent = notes(tmp_path / "effects.log", effect=tool)
    assert told == (["Oslo: 8 EUR"] if calls == 2 else "EffectAmbiguous")
    assert len(sent) == calls
    assert len({line["key"] for line in sent}) == 1
    generations = query(tmp_path / "runs.db", "SELECT generation FROM runs")
    assert generations == [(1,)]


def test_a_lost_connection_does_not_fail_a_run_that_goes_on_without_it(
    tmp_path: Path, url: str
) -> None:
    (told,) = asyncio.run(take_turn(tmp_path, url, "send", [], tell=True))
    assert told["outcome"] == "unknown"
    assert "Connection closed" in told["why"]
    assert len(notes(tmp_path / "effects.log", effect="send")) == 1
