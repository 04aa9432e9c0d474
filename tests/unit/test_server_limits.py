"""What one process bears: what is beyond is refused, and costs little."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from perdure import App
from perdure.server import Limits
from perdure.testing.manual_clock import ManualClock
from tests.serving import CHAT, SAY, Served, address, refused, untouched, visited


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        await refused(it.post(SAY, {"text": "x" * 2000}), 413, "BodyTooLarge")

        async def chunks() -> Any:
            for _ in range(50):
                yield b" " * 100

        headers = {"content-type": "application/json"}
        streamed = it.post(SAY, json=None, content=chunks(), headers=headers)
        await refused(streamed, 413, "BodyTooLarge")
        parts = [{"type": "text", "text": "a"}] * 5
        await refused(it.post(SAY, {"message": {"parts": parts}}), 413, "TooManyParts")
        chat = {**CHAT, "messages": [{"id": "m", "role": "user", "parts": parts}]}
        await refused(it.post("/api/chat", chat), 413, "TooManyParts")
        many = {f"x-{number}": "y" * 100 for number in range(20)}
        await refused(it.post(SAY, {"text": "x"}, headers=many), 431, "HeadersTooLarge")
        for limit in ("0", "-1", "1e3", "101", "x"):
            path = f"/sessions/s1/messages?limit={limit}"
            await refused(it.get(path), 400, "InvalidLimit")
        await untouched(app)

    visited(tmp_path, scene, limits=Limits(body_bytes=1000, message_parts=4, header_bytes=1500))


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        reader, writer = await asyncio.open_connection(*address(it))
        writer.write(b"POST /sessions/s1/input HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n")
        writer.write(b"authorization: Bearer alice\r\ncontent-type: application/json\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        assert b"BodyTooSlow" in await reader.read()
        writer.close()

    visited(tmp_path, scene, limits=Limits(body_seconds=0.05))


def test_requests_are_bounded_by_client_and_by_session(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scene(it: Served, app: App) -> None:
        path = "/sessions/s1/messages"
        statuses = [(await it.get(path)).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refusal = await it.get(path)
        assert (refusal.headers["retry-after"], refusal.json()["code"]) == ("20", "TooManyRequests")
        assert [(await it.get(path, "bob")).status_code for _ in range(3)] == [200, 200, 429]
        clock.advance(20.0)
        assert (await it.get(path)).status_code == 200

    bounds = Limits(client_requests_per_minute=3, session_requests_per_minute=5)
    visited(tmp_path, scene, limits=bounds, clock=clock)


def test_a_thousand_connections_are_bounded(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        request = (
            b"GET /sessions/s1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\n\r\n"
        )
        connections = []
        for _ in range(20):
            opened = await asyncio.gather(
                *(asyncio.open_connection(*address(it)) for _ in range(50))
            )
            for _, writer in opened:
                writer.write(request)
            connections += opened
        lines = await asyncio.gather(*(reader.readline() for reader, _ in connections))
        statuses = [line.split()[1] for line in lines]
        assert (statuses.count(b"200"), statuses.count(b"429")) == (20, 980)
        assert it.server.streams == 20
        assert (await it.get("/sessions/s1/messages", "bob")).status_code == 200
        for _, writer in connections:
            writer.close()
        while it.server.streams:
            await asyncio.sleep(0)
        async with it.stream("/sessions/s1/events") as stream:
            assert stream.response.status_code == 200

    bounds = Limits(client_requests_per_minute=10_000, session_requests_per_minute=10_000)
    visited(tmp_path, scene, limits=bounds)


def test_what_is_said_where_there_is_no_room_to_answer_is_not_said(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        async with it.stream("/sessions/s1/events"):
            await refused(it.post("/api/chat", CHAT), 429, "TooManyRequests")
            await untouched(app)
        while it.server.streams:
            await asyncio.sleep(0)
        gone = {**CHAT, "messageId": "gone"}
        await refused(it.post("/api/chat", gone), 404, "UnknownMessage")
        assert it.server.streams == 0

    visited(tmp_path, scene, limits=Limits(client_streams=1))


def test_a_reader_that_does_not_read_is_let_go_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        _, writer = await asyncio.open_connection(*address(it), limit=1024)
        writer.write(b"GET /sessions/s1/events HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"authorization: Bearer alice\r\n\r\n")
        while not it.server.streams:
            await asyncio.sleep(0)
        async with it.stream("/sessions/s1/events", token="bob") as stream:
            while it.server.streams == 2:
                await it.post(SAY, {"text": "x" * 500_000})
                # The other reader has each message before the next one is written.
                while (
                    json.loads((await stream.frame()).get("data", "{}")).get("name") != "ai-input"
                ):
                    pass
        writer.close()

    visited(tmp_path, scene, limits=Limits(send_seconds=1.0, client_requests_per_minute=100_000))
