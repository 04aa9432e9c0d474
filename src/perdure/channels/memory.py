from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from perdure.errors import ContinuityLost, InvalidSessionArgument
from perdure.session.channel import Draft, HistoryPage, Revision, Snapshot, as_carried
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog


class MemoryLog:
    """What is on one channel, in the memory of this process. It belongs to one event loop."""

    def __init__(self) -> None:
        self.deliveries: list[WireMessage] = []
        """Every delivery so far, in order."""
        self._state = MessageLog()
        self._serials: list[str] = []
        self._published: dict[tuple[str, str], str] = {}
        self._grown = asyncio.Event()

    def channel(self, client_id: str) -> MemoryChannel:
        """Return the channel as a client has it."""
        return MemoryChannel(self, client_id)

    @property
    def cursor(self) -> str:
        """The version of the last delivery, or what stands for it where there was none."""
        return _version(len(self.deliveries))

    def next_version(self) -> str:
        """Return the version that the next delivery has."""
        return _version(len(self.deliveries) + 1)

    def add(self, delivery: WireMessage) -> None:
        """Store a delivery and give it to all who are attached."""
        self.deliveries.append(delivery)
        if not delivery.ephemeral:
            if delivery.action is Action.CREATE:
                self._serials.append(delivery.serial)
            self._state.receive(delivery)
        self._grown.set()
        self._grown = asyncio.Event()

    def publish(self, draft: Draft, client_id: str) -> str:
        """Store a draft, unless it is there already; return its serial."""
        own_id = (client_id, draft.message_id)
        if own_id not in self._published:
            serial = self.next_version()
            self.add(
                WireMessage(
                    serial=serial,
                    version=serial,
                    name=draft.name,
                    data=as_carried(draft.data),
                    client_id=client_id,
                    transport=dict(draft.transport),
                    codec=dict(draft.codec),
                    ephemeral=draft.ephemeral,
                )
            )
            self._published[own_id] = serial
        return self._published[own_id]

    def page(self, before: str | None, limit: int) -> HistoryPage:
        """Return messages as they stand, newest first."""
        older = [serial for serial in self._serials if before is None or serial < before]
        found = [self._state.get(serial) for serial in reversed(older[-limit:])]
        return HistoryPage([message for message in found if message], len(older) > limit)

    def get(self, serial: str) -> WireMessage:
        """Return a message as it stands. Raises `InvalidSessionArgument` if there is none."""
        message = self._state.get(serial)
        if message is None:
            raise InvalidSessionArgument(f"the channel has no message {serial!r} to change")
        return message

    def index(self, cursor: str) -> int:
        """Return how many deliveries a cursor is behind. Raises `ContinuityLost` if it is none."""
        index = sum(delivery.version <= cursor for delivery in self.deliveries)
        if cursor != _version(index):
            raise ContinuityLost(f"{cursor!r} is no cursor of this channel; read a snapshot")
        return index

    async def behind(self, index: int) -> AsyncGenerator[WireMessage, None]:
        """Yield the deliveries from an index on, as they come."""
        while True:
            grown = self._grown
            while index < len(self.deliveries):
                index += 1
                yield self.deliveries[index - 1]
            if grown is self._grown:
                await grown.wait()


class MemoryChannel:
    """A `SnapshotChannel` over a `MemoryLog`: what it holds is gone with the process."""

    def __init__(self, log: MemoryLog, client_id: str) -> None:
        self._log = log
        self._client_id = client_id

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        """Store messages. Durable when it returns: nothing outlasts the process."""
        for draft in drafts:
            draft.check()
        return [self._log.publish(draft, self._client_id) for draft in drafts]

    async def append(self, serial: str, change: Revision) -> str:
        """Add to a message. Durable when it returns: nothing outlasts the process."""
        return self._change(Action.APPEND, serial, None, change)

    async def update(self, serial: str, change: Revision) -> str:
        """Replace a message. Durable when it returns: nothing outlasts the process."""
        return self._change(Action.UPDATE, serial, self._log.get(serial).name, change)

    async def history(self, before: str | None = None, limit: int = 100) -> HistoryPage:
        """Return messages as they stand, newest first."""
        return self._log.page(before, limit)

    async def snapshot(self, limit: int = 100) -> Snapshot:
        """Return the newest messages, and the cursor behind them."""
        page = self._log.page(None, limit)
        return Snapshot(page.messages, self._log.cursor, page.more)

    @asynccontextmanager
    async def subscribe(
        self, after: str | None = None
    ) -> AsyncGenerator[AsyncIterator[WireMessage], None]:
        """Attach, and give every delivery behind a cursor, or from now on.

        Raises `ContinuityLost` on entering.
        """
        index = self._log.index(self._log.cursor if after is None else after)
        async with aclosing(self._log.behind(index)) as deliveries:
            yield deliveries

    def _change(self, action: Action, serial: str, name: str | None, change: Revision) -> str:
        change.check()
        self._log.get(serial)
        version = self._log.next_version()
        self._log.add(
            WireMessage(
                serial=serial,
                version=version,
                action=action,
                name=name,
                data=change.data,
                client_id=self._client_id,
                transport=dict(change.transport),
                codec=dict(change.codec),
            )
        )
        return version


def _version(number: int) -> str:
    return f"{number:014}-000@memory:000"
