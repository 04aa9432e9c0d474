"""What a server cannot do is told with a status and a code, and what is to stop stops."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.errors import (
    AlreadyResolved,
    ApprovalClosed,
    ChannelNotReady,
    EngineClosed,
    InputConflict,
    InvalidPayload,
    InvalidSessionArgument,
    MissingSerial,
    PerdureError,
    RunEnded,
    RunErased,
    RunNotObserved,
    SendFailed,
    SessionClosed,
    SessionForbidden,
    StorageBusy,
    UnknownApproval,
    UnknownFunction,
    UnknownRun,
)
from perdure.session.codec import UiMessageCodec
from perdure.session.run import SessionInvocation
from perdure.session.session import AgentSession
from tests.serving import CHAT, SAY, Served, refused, untouched, visited

CANCEL, STOP = "/sessions/s1/cancel", "/api/chat/s1/stop"
ERRORS: tuple[tuple[PerdureError, int, str], ...] = (
    (InvalidPayload("told"), 400, "InvalidPayload"),
    (InvalidSessionArgument("told"), 400, "InvalidSessionArgument"),
    (SessionForbidden("told"), 403, "SessionForbidden"),
    (UnknownRun("told"), 404, "UnknownRun"),
    (UnknownApproval("told"), 404, "UnknownApproval"),
    (InputConflict("told"), 409, "InputConflict"),
    (RunEnded("told", "cancelled"), 409, "RunEnded"),
    (AlreadyResolved("told", "i", winner="yes", by=None, at=None), 409, "AlreadyResolved"),
    (ApprovalClosed("told"), 409, "ApprovalClosed"),
    (RunErased("told", by="ada", why="asked"), 410, "RunErased"),
    (MissingSerial("kept"), 500, "ServerFailed"),
    (UnknownFunction("kept"), 501, "UnknownFunction"),
    (ChannelNotReady("kept"), 503, "ChannelNotReady"),
    (SessionClosed("kept"), 503, "SessionClosed"),
    (SendFailed("kept"), 503, "SendFailed"),
    (EngineClosed("kept"), 503, "EngineClosed"),
    (StorageBusy("kept"), 503, "StorageBusy"),
    (RunNotObserved("kept"), 504, "RunNotObserved"),
)


def test_every_error_has_a_status_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(it: Served, app: App) -> None:
        for error, status, code in ERRORS:

            async def start_turn(_: Any, __: Any, error: PerdureError = error) -> Any:
                raise error

            monkeypatch.setattr(app, "start_turn", start_turn)
            said = await refused(it.post(SAY, {"text": "x"}), status, code)
            assert ("told" in said) == (status < 500)
            assert "kept" not in said

    visited(tmp_path, scene)


@asynccontextmanager
async def opened(app: App, said: dict[str, Any]) -> AsyncGenerator[Any]:
    """Open the run that answers, as an agent does; it goes on until the test ends it."""
    async with AgentSession(app.channel("s1", "agent"), UiMessageCodec()) as session:
        invocation = SessionInvocation(said["event_id"], "s1")
        run = session.create_run(invocation, run_id=said["run_id"], invocation_id="i")
        await run.start()
        yield run


def test_steering_a_run_that_has_ended_is_refused(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        said = (await it.post(SAY, {"text": "x"})).json()
        steer = {"text": "shorter", "steer": said["run_id"]}
        heard = {**steer, "event_id": "heard"}
        async with opened(app, said) as answer:
            first = (await it.post(SAY, heard)).json()
            await app.cancel(said["run_id"])
            # Its session has not heard of that.
            await refused(it.post(SAY, {**steer, "event_id": "late"}), 409, "RunEnded")
            await answer.end("cancelled")
        before = (await app.channel("s1", "test").history()).messages
        await refused(it.post(SAY, steer), 409, "RunEnded")
        assert (await it.post(SAY, heard)).json() == first
        assert (await app.channel("s1", "test").history()).messages == before

    visited(tmp_path, scene)


def test_an_event_id_that_stands_for_something_else_is_refused(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        said = (await it.post(SAY, {"text": "x", "event_id": "e"})).json()
        await refused(it.post(SAY, {"text": "y", "event_id": "e"}), 409, "InputConflict")
        assert (await it.post(SAY, {"text": "x", "event_id": "e"})).json() == said
        async with it.stream("/api/chat", CHAT):
            pass
        part = {"type": "text", "text": "something else"}
        chat = {**CHAT, "messages": [{**CHAT["messages"][0], "parts": [part]}]}
        await refused(it.post("/api/chat", chat), 409, "InputConflict")

    visited(tmp_path, scene)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"type": "text", "text": ""}],
        [{"type": "text", "text": " \n"}, {"type": "step-start"}],
        [{"type": "bogus"}, {"type": 1}, 1],
    ],
    ids=["no-part", "empty", "blank", "unknown"],
)
def test_what_says_nothing_is_refused_wherever_it_comes(tmp_path: Path, parts: list[Any]) -> None:
    async def scene(it: Served, app: App) -> None:
        chat = {**CHAT, "messages": [{"id": "m1", "role": "user", "parts": parts}]}
        await refused(it.post(SAY, {"message": {"parts": parts}}), 400, "SaysNothing")
        await refused(it.post("/api/chat", chat), 400, "SaysNothing")
        for part in parts:
            if isinstance(part, dict) and "text" in part:
                await refused(it.post(SAY, {"text": part["text"]}), 400, "SaysNothing")
        await untouched(app)
        for part in ({"type": "file", "url": "data:,"}, {"type": "data-x", "data": None}):
            assert (
                await it.post(SAY, {"message": {"parts": [*parts[:1], part]}})
            ).status_code == 202

    visited(tmp_path, scene)


@pytest.mark.parametrize("path", [CANCEL, STOP])
def test_what_waits_is_cancelled_however_long_it_has(tmp_path: Path, path: str) -> None:
    async def scene(it: Served, app: App) -> None:
        said = (await it.post(SAY, {"text": "x"})).json()
        async with opened(app, said) as answer:
            await answer.suspend()
        async with app.client_session("s1", "alice") as client:
            for number in range(101):
                await client.send(f"and {number}")
        stopped = await it.post(path)
        assert (stopped.status_code, stopped.json()["cancelled"][0]) == (202, said["run_id"])
        states = {row.run_id: row.state for row in await app.list()}
        assert set(states.values()) == {"cancelled"}

    visited(tmp_path, scene)


def test_what_was_erased_keeps_nothing_from_being_cancelled(tmp_path: Path) -> None:
    async def erased(app: App, said: dict[str, Any]) -> None:
        await app.cancel(said["run_id"])
        await app.erase(said["run_id"], by="ada", why="asked")

    async def scene(it: Served, app: App) -> None:
        first, second = [(await it.post(SAY, {"text": text})).json() for text in ("x", "y")]
        for said in (first, second):
            async with opened(app, said) as answer:
                await answer.suspend()
        await erased(app, first)
        await erased(app, (await it.post(SAY, {"text": "z"})).json())
        assert (await it.post(CANCEL)).json() == {"cancelled": [second["run_id"]]}

    visited(tmp_path, scene)


def test_a_page_of_somebody_else_stops_nothing(tmp_path: Path) -> None:
    """Browsers send a form, or nothing, to any server without asking it first."""

    async def scene(it: Served, app: App) -> None:
        await it.post(SAY, {"text": "x"})
        for options in ({"json": None}, {"json": None, "data": {"a": "b"}}):
            await refused(it.post(STOP, **options), 415, "NotJson")
        assert (await app.list())[0].state == "pending"

    visited(tmp_path, scene)
