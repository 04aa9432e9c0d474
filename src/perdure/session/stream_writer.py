from __future__ import annotations

import asyncio
from typing import Final

from perdure.errors import SendFailed, SessionError, StreamNotRepaired
from perdure.session import headers
from perdure.session.channel import Revision
from perdure.session.publisher import Publisher

_PIECE: Final = 32_768
"""How many characters one append takes at most, since channels bound what a message is."""


class StreamWriter:
    """Lets one message grow: one append at a time, with all that came while the last was sent.

    Where an append fails, the next thing sent is the whole text. So nothing is ever written behind
    a gap, and every reader, also one that only takes what continues its text, has it filled.
    """

    def __init__(
        self, publisher: Publisher, serial: str, transport: dict[str, str], codec: dict[str, str]
    ) -> None:
        self._publisher = publisher
        self._serial = serial
        self._transport = transport
        self._codec = codec
        self._text = ""
        self._unsent = ""
        self._torn = False
        self._sending: asyncio.Task[None] | None = None

    def add(self, fragment: str) -> None:
        """Take text in, to be sent as soon as the append under way is done.

        Raises what kept the text before from being written.
        """
        self._text += fragment
        self._unsent += fragment
        if self._sending is not None and self._sending.done():
            self._sending.result()
            self._sending = None
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def flush(self) -> None:
        """Wait until all is sent. Durable when it returns: the text so far.

        Raises `StreamNotRepaired` where some of it could not be written.
        """
        if self._sending is not None:
            await self._sending

    async def close(
        self, status: str, codec: dict[str, str] | None = None, whole: str | None = None
    ) -> None:
        """Send the rest, and say that the stream has ended.

        `whole` is what the text has to be, where what was added has not come to that. Durable when
        it returns: text and status. Raises `StreamNotRepaired`.
        """
        await self.flush()
        self._codec = {**self._codec, **(codec or {})}
        rest = ""
        if whole is not None and whole.startswith(self._text):
            rest = whole[len(self._text) :]
        elif whole is not None:
            self._text = whole
            await self._rewrite(headers.STREAMING)
        if len(rest) > _PIECE:
            self.add(rest)
            await self.flush()
            rest = ""
        self._text += rest
        try:
            await self._publisher.append(self._serial, self._change(rest, status))
        except SendFailed:
            await self._rewrite(status)

    async def abandon(self) -> None:
        """Send nothing more, and leave the stream open."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._unsent or self._torn:
            if self._torn:
                await self._rewrite(headers.STREAMING)
                continue
            fragment, self._unsent = self._unsent[:_PIECE], self._unsent[_PIECE:]
            try:
                change = self._change(fragment, headers.STREAMING)
                await self._publisher.append(self._serial, change)
            except SendFailed:
                self._torn = True

    async def _rewrite(self, status: str) -> None:
        self._unsent, self._torn = "", False
        try:
            await self._publisher.update(self._serial, self._change(self._text, status))
        except SessionError as error:
            raise StreamNotRepaired(
                f"text of the stream {self._serial} was lost on the way and could not be written"
                f" again: {error}"
            ) from error

    def _change(self, data: str, status: str) -> Revision:
        transport = {**self._transport, headers.STATUS: status}
        return Revision(data=data, transport=transport, codec=self._codec)
