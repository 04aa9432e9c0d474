"""What becomes of MCP requests whose worker or whose server is killed, over stdio and HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.acceptance import mcp_depot, mcp_run
from tests.acceptance.children import Child, notes, query, run, running, until
from tests.acceptance.samples import LONG, sample

pytestmark = LONG

ALL = ["quote", "track", "send", "fetch"]
DONE = [ALL, ["Oslo: 8 EUR"]]
CALL = "mcp.request/2"


def ended(folder: Path) -> Any:
    return json.loads((folder / "ended.json").read_text())


def calls(folder: Path, tool: str) -> list[dict[str, Any]]:
    return notes(folder / "effects.log", effect=tool)


def states(folder: Path) -> list[tuple[Any, ...]]:
    return query(folder / "runs.db", "SELECT target, support, state FROM receipts")


@pytest.fixture(params=["stdio", "http"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Have a server in a folder, and none left behind."""
    if request.param == "http":
        with serving(tmp_path):
            yield tmp_path
        return
    yield tmp_path
    until(lambda: not any(is_alive(line["pid"]) for line in notes(tmp_path / "servers.log")))


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Child]:
    (folder / "url").unlink(missing_ok=True)
    with running(folder, mcp_depot.serve, folder, port) as server:
        until((folder / "url").exists, server)
        yield server


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


SENT_TWICE = [("depot.quote", "idempotent", "completed")]
IN_DOUBT = [("depot.send", "at_least_once", "ambiguous")]


KILLS: list[tuple[str, str, list[Any]]] = [
    *(("quote", when, SENT_TWICE) for when in ("before", "during", "after")),
    *(("send", when, IN_DOUBT) for when in ("before", "during", "after")),
    ("track", "during", []),
]


@pytest.mark.parametrize(("tool", "when", "expected"), sample(KILLS, lambda kill: kill[1]))
def test_a_worker_that_is_killed_leaves_a_call_to_what_its_tool_can_do(
    folder: Path, tool: str, when: str, expected: list[Any]
) -> None:
    if when == "during":
        (folder / "hold").touch()
        with running(folder, mcp_run.ask, folder, tool, None) as worker:
            until(lambda: calls(folder, tool), worker)
            worker.kill()
        (folder / "hold").unlink()
    else:
        point = {"before": "operation.call", "after": "operation.called"}[when]
        with running(folder, mcp_run.ask, folder, tool, f"{point} {CALL}") as worker:
            worker.die()
    before = len(calls(folder, tool))
    assert before == (when != "before")
    (folder / "closed").touch()  # the list is another one by now, and what was recorded stands
    run(folder, mcp_run.ask, folder, tool, None)
    assert states(folder) == expected
    if tool == "send":
        assert ended(folder) == {"ended": "EffectAmbiguous"}
        assert len(calls(folder, tool)) == before
    else:
        assert ended(folder) == {"returned": DONE}
        assert len(calls(folder, tool)) == before + 1
    keys = {line["key"] for line in calls(folder, tool)}
    assert len(keys) <= 1
    assert (None in keys) == (tool == "track")


LOSSES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("quote", {"returned": DONE}, SENT_TWICE),
    ("track", {"returned": DONE}, []),
    ("send", {"ended": "EffectAmbiguous"}, IN_DOUBT),
]


@pytest.mark.parametrize(
    ("tool", "ending", "expected"), sample(LOSSES, lambda loss: "ended" in loss[1])
)
def test_a_server_that_is_killed_in_the_middle_of_a_call_is_asked_again_where_that_is_harmless(
    tmp_path: Path, tool: str, ending: dict[str, Any], expected: list[Any]
) -> None:
    (tmp_path / "die").touch()
    run(tmp_path, mcp_run.ask, tmp_path, tool, None)
    assert ended(tmp_path) == ending
    assert states(tmp_path) == expected
    assert len(calls(tmp_path, tool)) == 1 + (tool != "send")


@pytest.mark.parametrize(
    ("tool", "ending"),
    [("track", {"returned": DONE}), ("send", {"ended": "EffectAmbiguous"})],
)
def test_an_http_server_that_is_killed_in_the_middle_of_a_call_is_asked_when_it_is_back(
    tmp_path: Path, tool: str, ending: dict[str, Any]
) -> None:
    (tmp_path / "die").touch()
    with serving(tmp_path) as server:
        port = urlsplit((tmp_path / "url").read_text()).port
        with running(tmp_path, mcp_run.ask, tmp_path, tool, None) as worker:
            server.die()
            with serving(tmp_path, port or 0):
                worker.succeed()
    assert ended(tmp_path) == ending
    assert len(calls(tmp_path, tool)) == 1 + (tool == "track")
