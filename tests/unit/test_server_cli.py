"""`perdure serve` and `perdure token`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from perdure.cli import main
from perdure.server import Grant, SignedTokens

SECRET = "s" * 32
PROGRAM = """
from perdure import App

app = App("sqlite:///runs.db")

@app.turn(version=1)
async def answer(context, turn):
    return await turn.stream(words)

async def words():
    yield "Hello."
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder with an App and a secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PERDURE_TOKEN_SECRET", raising=False)
    (tmp_path / "served_shop.py").write_text(PROGRAM)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    sys.modules.pop("served_shop", None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_token_is_made_with_the_secret_of_a_file_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["token", "--session", "s1", "--session", "shop-*", "--client", "alice"]
    tokens = SignedTokens(SECRET.encode())
    assert main([*words, "--secret-file", "secret"]) == 0
    grant = Grant(client_id="alice", sessions=("s1", "shop-*"))
    assert tokens(capsys.readouterr().out.strip()) == grant
    monkeypatch.setenv("PERDURE_TOKEN_SECRET", SECRET)
    assert main([*words, "--read-only", "--expires-seconds", "60", "--json"]) == 0
    found = tokens(json.loads(capsys.readouterr().out)["token"])
    assert found is not None
    assert not found.write


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["token", "--session", "s", "--client", "c"], "which secret"),
        (["token", "--session", "s", "--client", "c", "--secret-file", "no"], "no cannot be read"),
        (["token", "--session", "", "--client", "c", "--secret-file", "secret"], "one session"),
        (["token", "--session", "s", "--client", "", "--secret-file", "secret"], "client is empty"),
        (["token", "--client", "c", "--secret-file", "secret"], "--session"),
        (["serve", "served_shop:app"], "which secret"),
        (["serve", "served_shop:app", "--insecure-no-auth", "--host", "0.0.0.0"], "this machine"),
        (["serve", "served_shop:app", "--port", "70000"], "a port is"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_what_answers_is_known_before_somebody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    another = "@app.turn(version=1)\nasync def other(context, turn): ...\n"
    words = ["serve", "served_shop:app", "--secret-file", "secret"]
    for program, more, known in (
        (PROGRAM.replace("@app.turn(version=1)", ""), [], "there is none"),
        (PROGRAM + another, [], "answer, other"),
        (PROGRAM + another, ["--turn", "third"], "answer, other"),
    ):
        Path("served_shop.py").write_text(program)
        sys.modules.pop("served_shop", None)
        assert main([*words, *more]) == 3
        assert known in capsys.readouterr().err


def test_a_secret_that_is_too_short_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("secret").write_text("short")
    assert main(["serve", "served_shop:app", "--secret-file", "secret"]) == 2
    assert "5 bytes" in capsys.readouterr().err


def test_an_app_is_served_until_a_signal_comes(capsys: pytest.CaptureFixture[str]) -> None:
    port = _free_port()
    told: list[str] = []

    def visit() -> None:
        token = SignedTokens(SECRET.encode()).issue("alice", ["s1"], expires_seconds=60)
        url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {token}"}
        try:
            with httpx.Client(base_url=url, headers=headers, timeout=20) as client:
                _wait_for(client)
                part = {"type": "text", "text": "hi"}
                message = {"id": "m1", "role": "user", "parts": [part]}
                chat = {"id": "s1", "messages": [message]}
                told.append(client.post("/api/chat", json=chat).text)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=visit)
    visitor.start()
    words = ["serve", "served_shop:app", "--secret-file", "secret", "--port", str(port), "--json"]
    assert main(words) == 0
    visitor.join()
    assert '"delta":"Hello."' in told[0]
    serving, stopped = map(json.loads, capsys.readouterr().out.splitlines())
    assert (serving["event"], serving["url"]) == ("serving", f"http://127.0.0.1:{port}")
    assert stopped == {"event": "stopped"}


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "served_shop:app", "--insecure-no-auth", "--port", port]) == 2
    assert f"cannot serve at 127.0.0.1:{port}" in capsys.readouterr().err


def test_what_is_wrong_with_the_database_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs.db").write_bytes(b"no database at all" * 100)
    assert main(["serve", "served_shop:app", "--insecure-no-auth", "--port", "0"]) == 4
    assert "sqlite:///runs.db" in capsys.readouterr().err


def _wait_for(client: httpx.Client) -> None:
    while True:
        try:
            if client.get("/healthz").status_code == 200:
                return
        except httpx.ConnectError:
            pass


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
