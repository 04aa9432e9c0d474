"""Runs that answer in a session, and what people who watch it are shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from perdure import App
from perdure.engine.run_handle import RunHandle
from perdure.session.channel import Draft
from perdure.session.client import ClientSession
from perdure.session.codec import UiMessageCodec
from perdure.session.message import WireMessage
from perdure.session.reader import SessionReader
from perdure.session.run import SessionInvocation
from perdure.session.run_node import RunInfo
from perdure.session.sent import Sent
from perdure.session.steered import Steered

ROOM = "room"
BEGINNING = "0" * 16
ENDED = ("complete", "cancelled", "error")
RUN_EVENTS = ("ai-run-start", "ai-run-suspend", "ai-run-resume", "ai-run-end")


@asynccontextmanager
async def joined(app: App, name: str = "alice", room: str = ROOM) -> AsyncGenerator[ClientSession]:
    """Join a session that is read to its beginning."""
    async with app.client_session(room, name) as client:
        await client.load_history()
        yield client


async def begun(
    app: App, text: str = "hi", *, function: str | None = None, room: str = ROOM
) -> RunHandle[Any]:
    """Say something in a session, and start the run that answers it."""
    async with joined(app, room=room) as client:
        return await posted(app, await client.send(text), function=function, room=room)


async def posted(
    app: App, sent: Sent | Steered, *, function: str | None = None, room: str = ROOM
) -> RunHandle[Any]:
    """Pass on what was said, as a server does."""
    return await app.start_turn(SessionInvocation(sent.event_id, room), function)


async def asked(app: App, text: str = "hi", *, room: str = ROOM) -> Any:
    """Say something in a session and return what the run that answers it returns."""
    async with joined(app, room=room) as client:
        sent = await client.send(text)
        handle = await posted(app, sent, room=room)
        await sent.ended()
        return await handle.result()


async def messages(app: App, room: str = ROOM) -> list[WireMessage]:
    """Return what stands on the channel of a session, oldest first."""
    page = await app.store.session_page(room, None, 100_000)
    return [*reversed(page.messages)]


async def names(app: App, *wanted: str, room: str = ROOM) -> list[str]:
    """Return the names of the messages of a session: of all, or of the events of runs."""
    found = [str(each.name) for each in await messages(app, room) if each.name]
    return [name for name in found if not wanted or name in wanted]


async def view(app: App, room: str = ROOM) -> SessionReader:
    """Return what somebody sees who comes now."""
    reader = SessionReader(UiMessageCodec())
    for message in await messages(app, room):
        reader.receive(message)
    return reader


async def runs(app: App, room: str = ROOM) -> list[RunInfo]:
    """Return the runs of a session, in order; of each branch."""
    reader = await view(app, room)
    found = {d.header("run-id"): None for d in await messages(app, room)}
    nodes = [reader.tree.run(run_id) for run_id in found if run_id]
    return [node.info for node in nodes if node is not None]


async def ends(app: App, room: str = ROOM) -> dict[str, list[str]]:
    """Return how each run of a session ended, which is once."""
    said: dict[str, list[str]] = {}
    for message in await messages(app, room):
        if message.name == "ai-run-end":
            said.setdefault(message.header("run-id"), []).append(message.header("run-reason"))
    return said


def shown(reader: SessionReader, role: str = "assistant") -> list[str]:
    """Return the texts that are shown, one of each message that has any."""
    said = [message.message for message in reader.view.messages]
    texts = ["".join(p.get("text", "") for p in m["parts"]) for m in said if m["role"] == role]
    return [text for text in texts if text]


def tools(reader: SessionReader) -> list[tuple[str, str, Any]]:
    """Return the calls of tools that are shown: their ids, states, and what they came to."""
    parts = [part for message in reader.view.messages for part in message.message["parts"]]
    return [
        (part["toolCallId"], part["state"], part.get("output", part.get("errorText")))
        for part in parts
        if "toolCallId" in part
    ]


class Watcher:
    """Somebody who watches a session from its beginning, or from a cursor, until a run has ended.

    `seen` are the texts that stood on the screen, each as it changed.
    """

    def __init__(self) -> None:
        self.reader = SessionReader(UiMessageCodec())
        self.reader.load([], more=False)
        self.seen: list[list[str]] = []

    @property
    def texts(self) -> list[str]:
        return shown(self.reader)

    async def watch(self, app: App, room: str = ROOM) -> AsyncIterator[WireMessage]:
        """Yield each delivery once it is on the screen."""
        cursor = self.reader.cursor or BEGINNING
        async with app.channel(room, "watcher").subscribe(cursor) as arriving:
            async for delivery in arriving:
                self.reader.receive(delivery)
                if self.seen[-1:] != [self.texts]:
                    self.seen.append(self.texts)
                yield delivery

    async def until(self, app: App, *statuses: str, room: str = ROOM) -> None:
        """Watch until the newest run stands in one of these ways, by default until it ended."""
        async for _ in self.watch(app, room):
            found = self.reader.view.runs
            if found and found[-1].lifecycle.status in (statuses or ENDED):
                return

    async def until_shown(self, app: App, text: str, room: str = ROOM) -> None:
        """Watch until a text that begins like this is on the screen."""
        if any(shown.startswith(text) for shown in self.texts):
            return
        async for _ in self.watch(app, room):
            if any(shown.startswith(text) for shown in self.texts):
                return

    def was_wiped(self) -> bool:
        """Return whether something was on the screen that was taken away again."""
        first = next((place for place, texts in enumerate(self.seen) if texts), len(self.seen))
        return [] in self.seen[first:]


def never_doubled(watcher: Watcher, answer: str) -> None:
    """Check that no text of two attempts was ever shown, and that the answer is, at the end."""
    assert watcher.texts == [answer]
    for texts in watcher.seen:
        assert len(texts) <= 1, texts
        assert all(answer.startswith(text) for text in texts), texts


async def settled(app: App, room: str = ROOM) -> None:
    """Return once every session has heard of every end."""
    while await app.store.ended_turns(1):
        await asyncio.sleep(0)


async def written(
    app: App,
    name: str,
    transport: dict[str, str],
    codec: dict[str, str] | None = None,
    data: Any = "",
    *,
    client: str = "mallory",
    room: str = ROOM,
) -> None:
    """Write a message by hand, as a hostile client may."""
    draft = Draft(
        message_id=f"{name}/{sorted(transport.items())}",
        name=name,
        transport=transport,
        codec=codec or {},
        data=data,
    )
    await app.channel(room, client).publish([draft])
