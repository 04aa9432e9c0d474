from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from perdure.clock import Clock
from perdure.errors import MissingSerial, SendFailed
from perdure.session.channel import Channel, Draft, Revision

_DELAYS_SECONDS: Final = (0.1, 0.2, 0.4)
_Result = TypeVar("_Result")


class Publisher:
    """Writes to a channel, and tries again what can be repeated without harm.

    `allowed` raises once nothing more may be written.
    """

    def __init__(self, channel: Channel, clock: Clock, allowed: Callable[[], None]) -> None:
        self._allowed = allowed
        self._channel = channel
        self._clock = clock

    async def publish(self, draft: Draft) -> str:
        """Write a message and return its serial; a repetition is the same message.

        Durable when it returns: the message. Raises `SendFailed` once the tries are used up, and
        `MissingSerial` where the channel does not say what it wrote.
        """
        (serial,) = await self.publish_all([draft])
        return serial

    async def publish_all(self, drafts: Sequence[Draft]) -> list[str]:
        """Write messages, all or none, and return their serials; a repetition writes nothing new.

        Durable when it returns: all of them. Raises like `publish`.
        """
        serials = await self._again(lambda: self._channel.publish(drafts))
        if len(serials) != len(drafts) or not all(serials):
            raise MissingSerial(
                f"the channel returned no serial for the {drafts[0].name} it accepted; allow"
                " messages to be changed in its settings"
            )
        return serials

    async def append(self, serial: str, change: Revision) -> None:
        """Add to a message, once. Durable when it returns: the addition."""
        self._allowed()
        await self._channel.append(serial, change)

    async def update(self, serial: str, change: Revision) -> None:
        """Write a message anew. Durable when it returns: the whole of it."""
        await self._again(lambda: self._channel.update(serial, change))

    async def _again(self, write: Callable[[], Awaitable[_Result]]) -> _Result:
        for seconds in _DELAYS_SECONDS:
            self._allowed()
            try:
                return await write()
            except SendFailed:
                await self._clock.sleep(seconds)
        self._allowed()
        return await write()
