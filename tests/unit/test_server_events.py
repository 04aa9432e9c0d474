"""Events and pages of a session: nothing is missed, and nothing is told twice without saying so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from perdure import App
from perdure.server import Limits
from perdure.server.conversation import Conversation
from perdure.server.deliveries import Deliveries
from perdure.session.channel import Draft
from perdure.session.codec import UiMessageCodec
from perdure.session.message import parse_message
from perdure.session.reader import SessionReader
from perdure.testing.manual_clock import ManualClock
from tests.harness import run
from tests.serving import Script, Served, Stream, ended, scripted, served, visited
from tests.session_agents import ASKED, World, source, text


async def write(app: App, *words: str, session: str = "s1") -> None:
    """Write what somebody says, as a client does that has the channel itself."""
    for word in words:
        key = uuid4().hex
        transport = {"role": "user", "codec-message-id": key, "event-id": key, "stream": "false"}
        codec = {"kind": "user-message", "partType": "text"}
        draft = Draft(message_id=key, name="ai-input", transport=transport, codec=codec, data=word)
        await app.channel(session, "alice").publish([draft])


async def next_event(stream: Stream, name: str | None = None) -> tuple[str, Any]:
    """Return the cursor and the data of the next event, which has this name."""
    frame = await stream.frame()
    while "data" not in frame:
        frame = await stream.frame()
    assert frame.get("event") == name
    return frame.get("id", ""), json.loads(frame["data"])


def test_a_reader_without_a_cursor_gets_a_snapshot_and_then_what_follows(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        await write(app, "one", "two")
        async with it.stream("/sessions/s1/events?limit=1") as stream:
            assert (await stream.frame())["id"] == "snapshot"
            cursor, snapshot = await next_event(stream, "snapshot")
            assert [message["data"] for message in snapshot["messages"]] == ["two"]
            assert (snapshot["cursor"], snapshot["more"]) == (cursor, True)
            await write(app, "three")
            after, delivery = await next_event(stream)
            assert after > cursor
            message = parse_message(delivery)
            assert (message.data, message.version, message.client_id) == ("three", after, "alice")

    visited(tmp_path, scene)


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_reader_goes_on_behind_its_cursor(tmp_path: Path, how: str) -> None:
    """T54: the first frame has a cursor before any payload."""

    async def scene(it: Served, app: App) -> None:
        await write(app, "one")
        async with it.stream("/sessions/s1/events") as stream:
            cursor, _ = await next_event(stream, "snapshot")
        await write(app, "two", "three")
        query = f"?after={cursor}" if how == "query" else ""
        header = {"last_event_id": cursor} if how == "header" else {}
        async with it.stream(f"/sessions/s1/events{query}", **header) as stream:
            assert (await stream.frame())["id"] == cursor
            assert [(await next_event(stream))[1]["data"] for _ in range(2)] == ["two", "three"]

    visited(tmp_path, scene)


def test_a_reader_cut_off_before_the_first_event_comes_again_from_the_first_frame(
    tmp_path: Path,
) -> None:
    async def scene(it: Served, app: App) -> None:
        await write(app, "one")
        async with it.stream("/sessions/s1/events") as stream:
            primed = (await stream.frame())["id"]
        async with it.stream("/sessions/s1/events", last_event_id=primed) as stream:
            _, snapshot = await next_event(stream, "snapshot")
            assert [message["data"] for message in snapshot["messages"]] == ["one"]

    visited(tmp_path, scene)


@pytest.mark.parametrize("cursor", ["9999999999999999", "nonsense", "%00%0aid: 1", "x" * 500])
def test_an_impossible_cursor_is_answered_with_a_resync(tmp_path: Path, cursor: str) -> None:
    async def scene(it: Served, app: App) -> None:
        await write(app, "one")
        async with it.stream(f"/sessions/s1/events?after={cursor}") as stream:
            at, snapshot = await next_event(stream, "resync")
            assert [message["data"] for message in snapshot["messages"]] == ["one"]
            await write(app, "two")
            after, _ = await next_event(stream)
            assert after > at

    visited(tmp_path, scene)


def test_a_stream_is_cut_off_in_the_middle_of_a_delta_and_goes_on(tmp_path: Path) -> None:
    """T54: deltas have cursors too."""

    async def main() -> None:
        app, script = scripted(tmp_path)
        async with served(app) as it:
            reader = SessionReader(UiMessageCodec())
            cursor = await _read_until_text(it, reader, script)
            script.say("lo", None)
            async with it.stream("/sessions/s1/events", last_event_id=cursor) as stream:
                while not _ended(reader):
                    reader.receive(parse_message((await next_event(stream))[1]))
            texts = [p["text"] for p in reader.view.messages[-1].message["parts"] if "text" in p]
            assert texts == ["Hello"]

    run(main())


async def _read_until_text(it: Served, reader: SessionReader, script: Script) -> str:
    async with it.stream("/sessions/s1/events") as stream:
        await next_event(stream, "snapshot")
        await it.post("/sessions/s1/input", {"text": "hi"})
        script.say("Hel")
        while True:
            cursor, document = await next_event(stream)
            reader.receive(parse_message(document))
            if document["action"] == "message.append" and document["data"] == "Hel":
                return cursor


def _ended(reader: SessionReader) -> bool:
    return [run.lifecycle.status.value for run in reader.view.runs] == ["complete"]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_whatever_happens_between_the_frames_is_delivered_once(every: int, ahead: int) -> None:
    """T52: a reader that breaks off after so many frames has the log, once and in order."""

    async def main() -> None:
        world, seen, cursor, said = World(), [], None, 0

        async def more(count: int) -> None:
            nonlocal said
            for _ in range(count):
                said += 1
                key = str(said)
                headers = {"role": "user", "codec-message-id": key, "event-id": key}
                codec = {"kind": "user-message", "partType": "text"}
                await world.write("ai-input", headers, codec, said)

        await more(ahead)
        while len(seen) < 20:
            channel = world.log.channel("alice")
            deliveries = Deliveries(channel, cursor, 100, world.clock)
            frames = deliveries.frames()
            for _ in range(every + 1):
                await more(1)
                async with asyncio.timeout(60):
                    found = _fields(await anext(frames))
                cursor = found.get("id", cursor)
                data = json.loads(found["data"]) if "data" in found else {"messages": []}
                told = data.get("messages", [data])
                seen += [message["data"] for message in told]
            await frames.aclose()
        assert seen == list(range(1, len(seen) + 1))

    run(main())


def _fields(frame: bytes) -> dict[str, str]:
    lines = [line.partition(": ") for line in frame.decode().split("\n") if line]
    return {name: text for name, _, text in lines}


def test_deliveries_that_were_missed_are_told_as_a_resync() -> None:
    async def main() -> None:
        world = World()
        await world.say("hi")
        frames = Deliveries(world.log.channel("a"), "nowhere", 10, ManualClock()).frames()
        first, second = _fields(await anext(frames)), _fields(await anext(frames))
        assert (first["id"], second["event"]) == ("nowhere", "resync")
        await frames.aclose()

    run(main())


def test_a_server_that_closes_hands_streams_over_with_their_cursor(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        await write(app, "one")
        async with it.stream("/sessions/s1/events") as stream:
            await next_event(stream, "snapshot")
            await write(app, "two")
            cursor, _ = await next_event(stream)
            it.http.should_exit = True
            _, handover = await next_event(stream, "handover")
            assert handover == {"cursor": cursor}
            assert await stream.frame() == {}

    visited(tmp_path, scene)


def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        async with it.stream("/sessions/s1/events") as stream:
            await next_event(stream, "snapshot")
            assert await stream.frame() == {":": "keep-alive"}

    visited(tmp_path, scene, limits=Limits(keep_alive_seconds=0.05))


def test_pages_go_back_to_the_beginning_of_a_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        app, script = scripted(tmp_path)
        async with served(app) as it:
            for number in range(3):
                said = await it.post("/sessions/s1/input", {"text": f"q{number}"})
                script.say(f"a{number}", None)
                await ended(it, said.json()["run_id"], "complete")
            found: list[str] = []
            before = ""
            while before is not None:
                page = (await it.get(f"/sessions/s1/messages?limit=4{before}")).json()
                told = ["".join(_texts(entry["message"])) for entry in page["messages"]]
                assert all(run["status"] == "complete" for run in page["runs"])
                found = told + found
                before = f"&before={page['before']}" if page["before"] else None
            assert found == ["q0", "a0", "q1", "a1", "q2", "a2"]
            assert (await it.get("/sessions/s1/messages?before=x")).status_code == 404

    run(main())


def _texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if "text" in part]


def test_a_page_shows_no_branch_that_an_edit_has_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        app, script = scripted(tmp_path)
        async with served(app) as it:
            for body in ({"text": "q0"}, {"text": "q1"}):
                said = (await it.post("/sessions/s1/input", body)).json()
                script.say("a", None)
                await ended(it, said["run_id"], "complete")
            first = (await it.get("/sessions/s1/messages")).json()["messages"][0]
            edit = {"text": "Q0", "edit": first["codecMessageId"]}
            said = (await it.post("/sessions/s1/input", edit)).json()
            script.say("A", None)
            await ended(it, said["run_id"], "complete")
            page = (await it.get("/sessions/s1/messages")).json()
            assert [_texts(entry["message"]) for entry in page["messages"]] == [["Q0"], ["A"]]
            again = {"regenerate": page["messages"][1]["codecMessageId"], "event_id": "again"}
            runs = [(await it.post("/sessions/s1/input", again)).json()["run_id"] for _ in "ab"]
            assert runs[0] == runs[1]
            script.say("AA", None)
            await ended(it, runs[0], "complete")
            page = (await it.get("/sessions/s1/messages")).json()
            assert [_texts(entry["message"]) for entry in page["messages"]] == [["Q0"], ["AA"]]

    run(main())


async def _asks(world: World, key: str, parent: str = "", **more: str) -> None:
    headers = {"role": "user", "codec-message-id": key, "event-id": key, "parent": parent, **more}
    await world.write("ai-input", headers, {"kind": "user-message", "partType": "text"}, key)


def test_an_edit_far_above_hides_what_came_behind_it() -> None:
    async def main() -> None:
        world = World()
        for number in range(250):
            await _asks(world, f"m{number}", f"m{number - 1}" if number else "")
        await _asks(world, "edited", **{"fork-of": "m0"})
        assert await _page(world, None, 3) == (["edited"], False)
        await _asks(world, "more", "edited")
        assert await _page(world, None, 1) == (["more"], True)
        assert await _page(world, "more", 1) == (["edited"], False)

    run(main())


def test_a_run_that_began_far_above_is_shown_once_that_is_read() -> None:
    async def main() -> None:
        world = World()
        await world.say("hi")
        async with world.agent() as session:
            opened = session.create_run(ASKED, run_id="r", invocation_id="i")
            await opened.start()
            for number in range(60):
                await opened.pipe(source(text(str(number), stream="t")))
        found, more = await _page(world, None, 2)
        assert (len(found), more) == (2, True)

    run(main())


async def _page(world: World, before: str | None, limit: int) -> tuple[list[str], bool]:
    channel = world.log.channel("a")
    conversation = Conversation(channel, UiMessageCodec(), world.clock, 10_000)
    await conversation.open()
    shown, more = await conversation.page(before, limit)
    return [message.codec_message_id for _, message in shown], more


def test_a_client_that_writes_the_channel_itself_asks_for_the_answer(tmp_path: Path) -> None:
    async def scene(it: Served, app: App) -> None:
        await write(app, "hi")
        page = await app.channel("s1", "x").history()
        event_id = page.messages[0].header("event-id")
        body = {"inputEventId": event_id, "sessionName": "s1", "more": 1}
        started = await it.post("/sessions/s1/invocations", body)
        assert started.status_code == 202
        assert [row.run_id for row in await app.list()] == [started.json()["run_id"]]
        elsewhere = {**body, "sessionName": "s2"}
        assert (await it.post("/sessions/s1/invocations", elsewhere)).status_code == 403
        unknown = {"inputEventId": "gone"}
        assert (await it.post("/sessions/s1/invocations", unknown)).status_code == 404

    visited(tmp_path, scene)


def test_steering_goes_to_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        app, script = scripted(tmp_path)
        async with served(app) as it:
            said = (await it.post("/sessions/s1/input", {"text": "hi"})).json()
            while not script.asked:
                await asyncio.sleep(0)
            steer = {"text": "shorter", "steer": said["run_id"]}
            steered = await it.post("/sessions/s1/input", steer)
            assert (steered.status_code, steered.json()["run_id"]) == (202, said["run_id"])
            foreign = {"text": "x", "steer": "turn-of-somebody-else"}
            assert (await it.post("/sessions/s1/input", foreign)).status_code == 404
            script.say("a", None)
            await ended(it, said["run_id"], "complete")

    run(main())
