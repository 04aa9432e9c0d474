from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final
from weakref import WeakValueDictionary

from perdure.channels.ably.client import (
    ATTACHED,
    CONNECTED,
    LOST,
    Client,
    ClientChannel,
    ClientChannels,
    Delivered,
    StateChange,
)
from perdure.channels.ably.refusals import not_attached
from perdure.channels.ably.wire import delivered
from perdure.errors import ContinuityLost, SubscriptionFailed
from perdure.session.message import WireMessage

_LEAVING_SECONDS: Final = 5.0


class Deliveries:
    """What one reader is given by a channel, until it may have missed something."""

    def __init__(self) -> None:
        self._channel: ClientChannel | None = None
        self._attached = False
        self._arrived: asyncio.Queue[WireMessage | ContinuityLost] = asyncio.Queue()

    async def begin(self, channel: ClientChannel, seconds: float) -> None:
        """Attach, and take in what comes from then on. Raises `SubscriptionFailed`."""
        self._channel = channel
        self._attached = channel.state.value == ATTACHED
        channel.on(self._notice)
        try:
            async with asyncio.timeout(seconds):
                # Both listen before it is attached, so that neither misses the first message.
                await asyncio.gather(
                    channel.subscribe("error", self._ignore), channel.subscribe(self._take)
                )
        except Exception as error:
            raise not_attached(error, channel.name) from error
        if channel.state.value != ATTACHED:
            raise SubscriptionFailed(
                f"the channel {channel.name!r} is {channel.state.value} instead of attached"
            )

    def end(self) -> None:
        """Take nothing in any more."""
        if self._channel is not None:
            self._channel.off(self._notice)
            self._channel.unsubscribe("error", self._ignore)
            self._channel.unsubscribe(self._take)

    async def follow(self) -> AsyncGenerator[WireMessage, None]:
        """Yield messages as they come. Raises `ContinuityLost` once some may be missing."""
        while True:
            arrived = await self._arrived.get()
            if isinstance(arrived, ContinuityLost):
                raise arrived
            yield arrived

    def _take(self, message: Delivered) -> None:
        if found := delivered(message):
            self._arrived.put_nowait(found)

    def _ignore(self, message: Delivered) -> None:
        """Do nothing.

        The client raises over a message that is named `error` and that nobody asked for by that
        name, and loses those that came along with it.
        """

    def _notice(self, change: StateChange) -> None:
        """Take note of what becomes of the channel; how it was first attached is no news."""
        attached = change.current.value == ATTACHED
        if not self._attached:
            self._attached = attached
        elif change.current.value in LOST or (attached and not change.resumed):
            reason = change.reason or "it did not go on where it was"
            self._arrived.put_nowait(
                ContinuityLost(f"messages of a channel may have been missed: {reason}")
            )


class Attachments:
    """The channels of one client: each is attached once, for as long as anybody reads it."""

    def __init__(self, client: Client, answer_seconds: float) -> None:
        self._client = client
        self._answer_seconds = answer_seconds
        self._params = {"agent": f"perdure/{version('perdure')}"}
        self._readers: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def channel(self, name: str) -> ClientChannel:
        """Return the client's channel; one that is there already keeps its options."""
        channels: ClientChannels = self._client.channels
        return channels.get(name) if name in channels else channels.get(name, params=self._params)

    @property
    def connection_id(self) -> str | None:
        """The connection that writes go over; another one knows nothing of those before it."""
        return self._client.connection.connection_manager.connection_id

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncGenerator[Deliveries, None]:
        """Attach; deliveries are taken in from then on. Raises `SubscriptionFailed`."""
        # One at a time: who attaches while another detaches would be told that it failed.
        turn = self._turns.setdefault(name, asyncio.Lock())
        deliveries = Deliveries()
        self._readers[name] += 1
        try:
            async with turn:
                await deliveries.begin(self.channel(name), self._answer_seconds)
            yield deliveries
        finally:
            deliveries.end()
            self._readers[name] -= 1
            await self._leave(name, turn)

    async def _leave(self, name: str, turn: asyncio.Lock) -> None:
        # The client tells the server as soon as it can; without a connection that may take long.
        connected = self._client.connection.state.value == CONNECTED
        try:
            async with asyncio.timeout(_LEAVING_SECONDS if connected else 0), turn:
                if self._readers[name] == 0:
                    del self._readers[name]
                    await self.channel(name).detach()
                    self._client.channels.release(name)
        except Exception:  # noqa: BLE001  a boundary: who leaves has no use for how it went
            return
