"""What those may do to a server who mean it no good: be refused, and cost little."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.errors import InvalidOptions, PerdureError, StorageBusy
from perdure.server import Grant, Limits, SignedTokens, anyone
from perdure.session.codec import UiMessageCodec
from perdure.session.run import SessionInvocation
from perdure.session.session import AgentSession
from perdure.testing.manual_clock import ManualClock
from tests.harness import run
from tests.serving import CHAT, SAY, Served, ended, refused, scripted, served, untouched, visited
from tests.session_agents import source


def test_a_token_is_for_its_sessions_and_for_what_it_may_do(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        said = await refused(it.post(SAY, {"text": "x"}, None), 401, "Unauthorized")
        assert "authorization: Bearer TOKEN" in said
        await refused(it.post(SAY, {"text": "x"}, "mallory"), 401, "Unauthorized")
        await refused(it.post("/sessions/s2/input", {"text": "x"}), 403, "Forbidden")
        await refused(it.post(SAY, {"text": "x"}, "reader"), 403, "Forbidden")
        await refused(it.post("/api/chat", {**CHAT, "id": "s2"}), 403, "Forbidden")
        await refused(it.get("/sessions/s2/events"), 403, "Forbidden")
        await refused(it.get("/api/chat/s2/stream"), 403, "Forbidden")
        await refused(it.get("/api/chat/s2/messages"), 403, "Forbidden")
        await refused(it.get("/sessions/s1/../s2/messages"), 403, "Forbidden")
        assert (await it.get("/sessions/shop-7/messages")).status_code == 200
        assert (await it.get("/sessions/s1/messages", "reader")).status_code == 200
        await untouched(app)

    visited(tmp_path, scene)


def test_a_token_stands_in_the_url_of_events_alone(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        path = "/sessions/s1/events?token=alice"
        async with it.stream(path, token=None) as stream:
            assert stream.response.status_code == 200
        assert (await it.client.head(path)).status_code == 200
        await refused(it.get("/sessions/s1/messages?token=alice", None), 401, "Unauthorized")
        path = f"{SAY}?token=alice"
        await refused(it.post(path, {"text": "x"}, None), 401, "Unauthorized")

    visited(tmp_path, scene)


def test_tokens_are_known_by_their_signature_until_they_expire() -> None:
    clock = ManualClock()
    tokens = SignedTokens(b"s" * 32)
    good = tokens.issue("alice", ["s1", "shop-*"], expires_seconds=60)
    assert tokens(good) == Grant(client_id="alice", sessions=("s1", "shop-*"))
    late = SignedTokens(b"s" * 32, clock=clock).issue("alice", ["s1"], expires_seconds=60)
    other = SignedTokens(b"t" * 32).issue("alice", ["s1"], expires_seconds=60)
    unsigned = _unsigned(good)
    for forged in (late, other, unsigned, good[:-2], good.replace(".", "", 1), "", "a.b.c"):
        assert tokens(forged) is None
    with pytest.raises(InvalidOptions, match="31 bytes"):
        SignedTokens(b"s" * 31)
    with pytest.raises(InvalidOptions, match="client_streams is more than 0"):
        Limits(client_streams=0)


def _unsigned(token: str) -> str:
    return "eyJhbGciOiJub25lIn0." + token.split(".")[1] + "."


BODIES = (
    *(b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"text": NaN}', b'{"text": "\\ud800"}'),
    *(b'{"text": 1}', b'{"text": "a", "text": "b"}', b'{"edit": "m"}'),
    *(b'{"text": "x", "client_id": "bob"}', b'{"text": "x", "run_id": "r"}'),
    *(b'{"text": "x", "message": {}}', b'{"message": {"parts": "x"}}'),
    *(b'{"text": "x", "event_id": ""}', b'{"message": {"parts": [1]}}'),
)
CHANGES: tuple[dict[str, Any], ...] = (
    {"messages": []},
    {"messages": [{"role": "user"}]},
    {"messages": [{"id": "a", "role": "system", "parts": []}]},
    {"trigger": "forget"},
    {"id": ""},
    {"id": "x" * 201},
    {"messages": [{"id": "a\nb", "role": "user", "parts": []}]},
    {"messages": 7},
)


def test_what_is_malformed_is_refused(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        headers = {"content-type": "application/json"}
        for body in BODIES:
            answer = await it.post(SAY, json=None, content=body, headers=headers)
            assert (answer.status_code, bool(answer.json()["message"])) == (400, True), body[:40]
        for change in CHANGES:
            answer = await it.post("/api/chat", {**CHAT, **change})
            assert answer.status_code == 400, change
        await untouched(app)

    visited(tmp_path, scene)


def test_what_is_no_json_of_the_sender_is_refused(tmp_path: Path) -> None:
    """A form that a browser posts from somebody else's page is no JSON."""

    async def scene(it: Served, app: App) -> None:
        headers = {"content-type": "text/plain"}
        body = it.post(SAY, json=None, content=b'{"text": "x"}', headers=headers)
        await refused(body, 415, "NotJson")
        await refused(it.get("/nowhere"), 404, "UnknownPath")
        await refused(it.get(SAY), 405, "WrongMethod")

    visited(tmp_path, scene)


def test_who_somebody_says_he_is_does_not_count(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        forged = {"x-client-id": "bob", "run-client-id": "bob", "x-forwarded-user": "bob"}
        said = await it.post(SAY, {"text": "x", "event_id": "e"}, headers=forged)
        assert said.json()["event_id"] == "alice/e"
        message = {"role": "system", "client_id": "bob", "parts": [{"type": "text", "text": "x"}]}
        await it.post(SAY, {"message": message})
        chat = {**CHAT, "clientId": "bob", "runId": "r", "client_id": "bob"}
        async with it.stream("/api/chat", chat):
            pass
        written = (await app.channel("s1", "test").history()).messages
        assert len(written) == 3
        for found in written:
            assert (found.client_id, found.header("run-client-id")) == ("alice", "alice")
            assert (found.header("role"), found.header("run-id")) == ("user", "")

    visited(tmp_path, scene)


def test_the_event_ids_of_two_clients_are_two(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        said = [
            (await it.post(SAY, {"text": name, "event_id": "e"}, name)).json()["run_id"]
            for name in ("alice", "bob", "alice")
        ]
        assert said[0] == said[2] != said[1]

    visited(tmp_path, scene)


def test_runs_of_other_sessions_are_not_there(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        other = (await it.post("/sessions/shop-7/input", {"text": "x"})).json()["run_id"]
        cancel = "/sessions/s1/cancel"
        await refused(it.post(cancel, {"run_id": other}), 404, "UnknownRun")
        await refused(it.post(SAY, {"text": "x", "steer": other}), 404, "UnknownRun")
        await refused(
            it.post("/sessions/s1/approvals/x", {"approved": True}), 404, "UnknownApproval"
        )
        part = {"toolCallId": "c", "state": "approval-responded", "approval": {"approved": True}}
        message = {"id": other, "role": "assistant", "parts": [part]}
        chat = {**CHAT, "messages": [message]}
        await refused(it.post("/api/chat", chat), 404, "UnknownMessage")
        assert (await app.list())[0].state == "pending"

    visited(tmp_path, scene)


def test_a_cancel_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        app, script = scripted(tmp_path)
        async with served(app) as it:
            said = (await it.post(SAY, {"text": "x"})).json()
            while not script.asked:
                await asyncio.sleep(0)
            cancel = {"run_id": said["run_id"]}
            answers = [await it.post("/sessions/s1/cancel", cancel) for _ in range(5)]
            assert answers[0].json() == {"cancelled": [said["run_id"]]}
            assert {answer.status_code for answer in answers} <= {200, 202}
            await ended(it, said["run_id"], "cancelled")
            assert (await it.post("/sessions/s1/cancel", cancel)).json() == {"cancelled": []}
            again = (await it.post(SAY, {"text": "y"})).json()
            assert (await it.post("/sessions/s1/cancel", cancel)).status_code in (200, 202)
            script.say("fine", None)
            await ended(it, again["run_id"], "complete")

    run(main())


def test_an_answer_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(it: Served, app: App) -> None:
        said = (await it.post(SAY, {"text": "x"})).json()
        asks = {"toolCallId": "c", "toolName": "t", "input": {}}
        chunks = [
            {"type": "tool-input-available", **asks},
            {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
        ]
        invocation = SessionInvocation(said["event_id"], "s1")
        async with AgentSession(app.channel("s1", "agent"), UiMessageCodec()) as session:
            opened = session.create_run(invocation, run_id=said["run_id"], invocation_id="i")
            await opened.start()
            await opened.pipe(source(chunks))
            await opened.suspend()

        async def start_turn(*_: Any) -> Any:
            return app.handle(said["run_id"])

        monkeypatch.setattr(app, "start_turn", start_turn)
        path = "/sessions/s1/approvals/a"
        for _ in range(2):
            answer = await it.post(path, {"approved": True}, "bob")
            assert (answer.status_code, answer.json()["run_id"]) == (202, said["run_id"])
        await refused(it.post(path, {"approved": False}), 409, "AlreadyResolved")
        inputs = [
            m for m in (await app.channel("s1", "x").history()).messages if m.name == "ai-input"
        ]
        assert [m.client_id for m in inputs] == ["bob", "alice"]

    visited(tmp_path, scene)


def test_a_server_without_tokens_asks_for_none(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        assert (await it.post(SAY, {"text": "x"}, None)).status_code == 202
        foreign = await it.client.get("/healthz", headers={"host": "evil.example"})
        assert foreign.status_code == 400

    visited(tmp_path, scene, authorize=anyone, hosts=("127.0.0.1",))


def test_what_storage_says_of_itself_stays_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(it: Served, app: App) -> None:
        errors = (StorageBusy("in /var/secret"), PerdureError("/var/s"), KeyError("/var/s"))
        told = (503, "StorageBusy"), (500, "ServerFailed"), (500, "ServerFailed")
        for error, expected in zip(errors, told, strict=True):

            def broken(*_: Any, error: Exception = error) -> Any:
                raise error

            monkeypatch.setattr(app, "channel", broken)
            answer = await it.get("/sessions/s1/messages")
            assert (answer.status_code, answer.json()["code"]) == expected
            assert "/var" not in answer.text
        assert "in /var/secret" in caplog.text

    visited(tmp_path, scene)
