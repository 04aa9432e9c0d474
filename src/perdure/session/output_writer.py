from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from perdure.session import headers
from perdure.session.codec.written import Begin, Encoder, End, More, Whole, Written
from perdure.session.connection import Connection
from perdure.session.stream_writer import StreamWriter


class OutputWriter:
    """Writes the outputs of one message: what is whole at once, what is streamed as it comes."""

    def __init__(
        self, connection: Connection, encoder: Encoder, transport: Callable[[], dict[str, str]]
    ) -> None:
        self._connection = connection
        self._encoder = encoder
        self._transport = transport
        self._streams: dict[tuple[str, str], StreamWriter] = {}

    async def write(self, output: Any) -> None:
        """Write one output. Durable when it returns: it, but what it adds to a stream."""
        for written in self._encoder.encode(output):
            await self._put(written)

    async def finish(self) -> None:
        """Write what comes after the last output. Durable when it returns: all outputs."""
        for written in self._encoder.finish():
            await self._put(written)
        await self.cancel_streams()

    async def cancel_streams(self) -> None:
        """Send the rest of open streams, and say that they were broken off."""
        while self._streams:
            _, stream = self._streams.popitem()
            await stream.close(headers.CANCELLED)

    async def flush(self) -> None:
        """Send the rest of open streams, and leave them open. Durable when it returns: all text."""
        for stream in self._streams.values():
            await stream.flush()

    async def abandon(self) -> None:
        """Send nothing more."""
        for stream in self._streams.values():
            await stream.abandon()

    async def _put(self, written: Written) -> None:
        match written:
            case Whole():
                transport = {**self._transport(), headers.STREAM: headers.FALSE}
                await self._connection.publish(
                    headers.AI_OUTPUT,
                    transport,
                    written.fields,
                    written.data,
                    ephemeral=written.ephemeral,
                )
            case Begin():
                await self._begin(written)
            case More():
                self._streams[written.key].add(written.text)
            case End():
                stream = self._streams.pop(written.key)
                await stream.close(headers.COMPLETE, written.fields, written.whole)
            case _:
                assert_never(written)

    async def _begin(self, begin: Begin) -> None:
        if begin.key in self._streams:
            await self._streams.pop(begin.key).close(headers.CANCELLED)
        transport = {
            **self._transport(),
            headers.STREAM: headers.TRUE,
            headers.STATUS: headers.STREAMING,
            headers.STREAM_ID: begin.key[1],
        }
        serial = await self._connection.publish(headers.AI_OUTPUT, transport, begin.fields, "")
        self._streams[begin.key] = StreamWriter(
            self._connection.publisher, serial, transport, begin.fields
        )
