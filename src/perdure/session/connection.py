from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final
from uuid import uuid4

from perdure.clock import Clock
from perdure.errors import (
    ChannelNotReady,
    ContinuityLost,
    HistoryFailed,
    InvalidSessionArgument,
    RunNotObserved,
    SessionCancelled,
    SessionClosed,
    SessionError,
    SubscriptionFailed,
)
from perdure.session import headers
from perdure.session.channel import Channel, Draft, HistoryPage
from perdure.session.codec import Codec
from perdure.session.message import WireMessage
from perdure.session.publisher import Publisher
from perdure.session.reader import SessionReader

_PAGE: Final = 100
_DELAYS_SECONDS: Final = (0.1, 0.2, 0.4)
_AGAIN_SECONDS: Final = 1.0
"""How long after deliveries broke off they are asked for again."""


class Connection:
    """A channel that is read while it is written to.

    What this side has said of its runs is read at once, and again when it is delivered, which
    changes nothing. History is read as far back as somebody needs it, in pages that all share.
    """

    def __init__(
        self, channel: Channel, codec: Codec, clock: Clock, report: Callable[[SessionError], None]
    ) -> None:
        self.codec = codec
        self.reader = SessionReader(codec)
        self.report = report
        self.publisher = Publisher(channel, clock, self.require)
        self.watchers: set[Callable[[], None]] = set()
        """What is called whenever there is something new in the tree."""
        self._channel = channel
        self._clock = clock
        self._opening = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None
        self._page: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._revision = 0
        self._attached = False
        self._closed = False

    async def open(self) -> None:
        """Attach, unless that is done. Raises `SubscriptionFailed`, and may be tried again."""
        async with self._opening:
            if self._closed:
                raise SessionClosed("the session is closed; make another one on the channel")
            if self._listening is not None:
                return
            attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            listening = asyncio.create_task(self._listen(attached))
            try:
                await attached
            except BaseException:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
                raise
            self._listening = listening

    async def close(self) -> None:
        """Detach. Nothing is published; whoever waits for something to be seen is refused."""
        self._closed = True
        self._tell()
        tasks = [task for task in (self._listening, self._page) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def require(self) -> None:
        """Raise unless the session is connected."""
        if self._closed:
            raise SessionClosed("the session is closed; make another one on the channel")
        if self._listening is None:
            raise InvalidSessionArgument("the session is not connected; await `connect()` first")

    async def publish(
        self,
        name: str,
        transport: dict[str, str],
        codec: dict[str, str] | None = None,
        data: Any = None,
        *,
        message_id: str | None = None,
        ephemeral: bool = False,
    ) -> str:
        """Write a message and return its serial. Durable when it returns: the message.

        `message_id` is that of an earlier try, if there was one.
        """
        draft = Draft(
            message_id=message_id or uuid4().hex,
            name=name,
            transport=transport,
            codec=codec or {},
            data=data,
            ephemeral=ephemeral,
        )
        serial = await self.publisher.publish(draft)
        if name != headers.AI_OUTPUT:
            self._take(WireMessage(serial=serial, version=serial, name=name, transport=transport))
        return serial

    def check_attached(self) -> None:
        """Raise unless the session is connected, and its channel attached at the moment."""
        self.require()
        if not self._attached:
            raise ChannelNotReady(
                "the session is not attached to its channel at the moment; it is being attached"
                " again, so try again later"
            )

    async def say(self, drafts: Sequence[Draft], client_id: str) -> list[str]:
        """Write what a client says, and read it at once. Durable when it returns: all of it."""
        serials = await self.publisher.publish_all(drafts)
        for serial, draft in zip(serials, drafts, strict=True):
            self._take(
                WireMessage(
                    serial=serial,
                    version=serial,
                    name=draft.name,
                    data=draft.data,
                    client_id=client_id,
                    transport=draft.transport,
                    codec=draft.codec,
                )
            )
        return serials

    async def changes(self) -> AsyncIterator[None]:
        """Yield now, and then whenever there is something new, until the session is closed.

        What comes while nobody waits is told of once.
        """
        seen = -1
        while not self._closed:
            if seen == self._revision:
                await self._changed.wait()
            else:
                seen = self._revision
                yield

    async def until(self, ready: Callable[[], bool], what: str, seconds: float | None) -> None:
        """Return once something is seen live. Raises `RunNotObserved` after `seconds`, if any."""
        timer = None if seconds is None else asyncio.create_task(self._clock.sleep(seconds))
        try:
            while not ready():
                self.require()
                if timer is not None and timer.done():
                    raise RunNotObserved(f"{what} was not seen within {seconds} s; try again later")
                await self._change(*([] if timer is None else [timer]))
        finally:
            if timer is not None:
                timer.cancel()

    async def observe(
        self, ready: Callable[[], bool], what: str, seconds: float, stop: asyncio.Event
    ) -> None:
        """Return once something is seen, in history or live.

        Raises `RunNotObserved` after `seconds`, and `SessionCancelled` if `stop` is set and history
        does not have it: what stands in history is looked at first, so that a cancel does not hide
        what it is to cancel.
        """
        timer = asyncio.create_task(self._clock.sleep(seconds))
        stopped = asyncio.create_task(stop.wait())
        try:
            while not ready():
                self.require()
                if stop.is_set() and self.reader.complete:
                    raise SessionCancelled(f"the run was cancelled before {what} was seen")
                if timer.done():
                    raise RunNotObserved(f"{what} was not seen within {seconds} s; try again later")
                more = stopped if self.reader.complete else self._paging()
                await self._change(timer, more)
                self._raise_unread(what)
        finally:
            timer.cancel()
            stopped.cancel()

    async def load_history(self) -> None:
        """Read history to its beginning. Raises `HistoryFailed`."""
        self.require()
        while not self.reader.complete:
            await self.load_page()

    async def load_page(self) -> None:
        """Read one page of history more. Raises `HistoryFailed`."""
        self.require()
        page = self._paging()
        await asyncio.wait({page})
        self.require()
        page.result()

    async def _change(self, *others: asyncio.Task[Any]) -> None:
        """Return once there is something new, or one of the others is done."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({changed, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _raise_unread(self, what: str) -> None:
        page = self._page
        if page is None or not page.done() or page.cancelled() or page.exception() is None:
            return
        self._page = None
        raise RunNotObserved(
            f"{what} was not seen: history could not be read; try again later"
        ) from page.exception()

    def _paging(self) -> asyncio.Task[None]:
        if self._page is None or self._page.done():
            self._page = asyncio.create_task(self._load_page())
            self._page.add_done_callback(_note)
        return self._page

    async def _load_page(self) -> None:
        page = await self._read(self.reader.oldest)
        self.reader.load(page.messages, more=page.more)
        self._tell()

    async def _read(self, before: str | None) -> HistoryPage:
        for seconds in _DELAYS_SECONDS:
            try:
                return await self._channel.history(before, _PAGE)
            except HistoryFailed:
                await self._clock.sleep(seconds)
        return await self._channel.history(before, _PAGE)

    async def _listen(self, attached: asyncio.Future[None]) -> None:
        missed_since: str | None = None
        while True:
            try:
                async with self._channel.subscribe(self.reader.cursor) as deliveries:
                    if not attached.done():
                        attached.set_result(None)
                    self._attached = True
                    if missed_since is not None:
                        await self._catch_up(missed_since)
                        missed_since = None
                    async for delivery in deliveries:
                        self.reader.cursor = delivery.version
                        self._take(delivery)
                raise ContinuityLost(
                    "the channel has ended the deliveries; they are asked for again"
                )
            except Exception as error:  # noqa: BLE001  a boundary: a channel may raise whatever
                if not attached.done():
                    attached.set_exception(_not_attached(error))
                    return
                self.report(error if isinstance(error, ContinuityLost) else _not_attached(error))
            self._attached = False
            # Attached first and read afterwards, so that nothing falls in between.
            missed_since, self.reader.cursor = missed_since or self.reader.cursor or "", None
            await self._clock.sleep(_AGAIN_SECONDS)

    async def _catch_up(self, since: str) -> None:
        """Read history from its end down to what had been seen: it has what was missed.

        That is shown as if it had arrived; what is older is withheld like all history.
        """
        before: str | None = None
        while True:
            page = await self._read(before)
            self.reader.view.load([old for old in page.messages if old.version <= since])
            for missed in reversed(page.messages):
                if missed.version > since:
                    self.reader.view.receive(missed)
            self._tell()
            before = min((message.serial for message in page.messages), default=None)
            if not page.more or before is None or before <= since:
                return

    def _take(self, delivery: WireMessage) -> None:
        try:
            self.reader.view.receive(delivery)
        except Exception as error:  # noqa: BLE001  a boundary: one message must not end the reading of others
            failed = SubscriptionFailed(f"the message {delivery.serial} was not read: {error}")
            failed.__cause__ = error
            self.report(failed)
        self._tell()

    def _tell(self) -> None:
        self._revision += 1
        for watcher in list(self.watchers):
            watcher()
        self._changed.set()
        self._changed = asyncio.Event()


def _not_attached(error: Exception) -> SubscriptionFailed:
    failed = SubscriptionFailed(f"the session is not attached to its channel: {error}")
    failed.__cause__ = error
    return failed


def _note(page: asyncio.Task[None]) -> None:
    """Take note of how a page went, in case nobody waits for it any more."""
    if not page.cancelled():
        page.exception()
