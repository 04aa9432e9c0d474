from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import cast

from starlette.responses import Response

from perdure.app import App
from perdure.clock import Clock
from perdure.server.conversation import Conversation
from perdure.server.event_stream import EventStream
from perdure.server.gate import Entry, Gate
from perdure.server.limits import Limits
from perdure.server.problems import Refused
from perdure.server.traffic import Slot
from perdure.session.channel import SnapshotChannel
from perdure.session.client import ClientSession
from perdure.session.codec import UiMessageCodec
from perdure.session.run import SessionInvocation


class Service:
    """What the endpoints of a server share: the App, the gate, and whether the server closes."""

    def __init__(self, app: App, gate: Gate, clock: Clock, turn: str | None) -> None:
        self.app = app
        self._turn = turn
        self.gate = gate
        self.clock = clock
        self.codec = UiMessageCodec()
        self.closing = asyncio.Event()

    @property
    def limits(self) -> Limits:
        """What this process bears."""
        return self.gate.limits

    def channel(self, entry: Entry) -> SnapshotChannel:
        """Return the channel of a session, as the client has it. Raises `Refused`."""
        channel = self.app.channel(entry.session, entry.client_id)
        if not hasattr(channel, "snapshot"):
            raise Refused(
                501, "NoSnapshots", "the sessions of this App are on a service that serves them"
            )
        return cast("SnapshotChannel", channel)

    async def read(self, entry: Entry) -> Conversation:
        """Return a session as far as its newest messages."""
        limit = self.limits.history_messages
        conversation = Conversation(self.channel(entry), self.codec, self.clock, limit)
        await conversation.open()
        return conversation

    def client(self, entry: Entry) -> ClientSession:
        """Return the session as the client has it, to be connected."""
        return self.app.client_session(entry.session, entry.client_id, self.codec)

    async def start(self, entry: Entry, event_id: str) -> str:
        """Let an agent answer what was sent under an event id; return the id of the run.

        Durable when it returns: that it will be answered. The same again is the same run.
        """
        asked = SessionInvocation(event_id, entry.session)
        handle = await self.app.start_turn(asked, self._turn)
        return handle.run_id

    def stream(
        self,
        slot: Slot,
        frames: AsyncGenerator[bytes],
        farewell: Callable[[], bytes],
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the response that frames are sent in, in the room that was taken for it."""
        return EventStream(
            frames,
            slot=slot,
            closing=self.closing,
            limits=self.limits,
            farewell=farewell,
            headers=headers,
        )
