from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

from perdure.errors import SessionError, StreamFailed
from perdure.session.output_writer import OutputWriter
from perdure.wording import text_of

Write = Callable[[Any], Awaitable[None]]


class PipeReason(StrEnum):
    """Why a stream has come to its end."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"
    ERROR = "error"


class PipeResult(msgspec.Struct, frozen=True):
    """How a stream went; `error` is there if the reason is one, with the cause it came from."""

    reason: PipeReason
    error: SessionError | None = None


async def pipe_into(
    output: OutputWriter,
    source: AsyncIterable[Any],
    cancelled: asyncio.Event,
    *,
    opened: Callable[[], Awaitable[None]],
    on_cancelled: Callable[[Write], Awaitable[None]] | None,
) -> PipeResult:
    """Write what a source yields until it ends, fails, or `cancelled` is set.

    `opened` is awaited before the first output; `on_cancelled` may write last outputs. What fails,
    the source or the writing, is in the result. What is no `Exception`, such as the cancelling of
    the task, is raised, and nothing more is written.
    """
    iterator = aiter(source)
    reading = _Reading(iterator, cancelled)
    try:
        try:
            while True:
                chunk = await reading.next()
                await opened()
                await output.write(chunk)
        except StopAsyncIteration:
            await output.finish()
            return PipeResult(PipeReason.COMPLETE)
        except _Cancelled:
            if on_cancelled is not None:
                await opened()
                await on_cancelled(output.write)
            await output.cancel_streams()
            return PipeResult(PipeReason.CANCELLED)
    except Exception as error:  # noqa: BLE001  a boundary: sources are anybody's code
        await _flushed(output)
        return PipeResult(PipeReason.ERROR, stream_failed(error))
    finally:
        try:
            await reading.close()
        finally:
            await output.abandon()


def stream_failed(error: BaseException) -> SessionError:
    """Return an error as the wire has it: as it is if it has a code, or else caused by it."""
    if isinstance(error, SessionError):
        return error
    failed = StreamFailed(text_of(error) or type(error).__name__)
    failed.__cause__ = error
    return failed


class _Cancelled(Exception):
    """The run was cancelled while a source was read."""


class _Reading:
    """Reads a source in the task of its caller, and stops waiting for it on a cancel."""

    def __init__(self, iterator: AsyncIterator[Any], cancelled: asyncio.Event) -> None:
        self._iterator = iterator
        self._cancelled = cancelled
        self._waiting: asyncio.Timeout | None = None
        self._watching = asyncio.create_task(self._watch())

    async def next(self) -> Any:
        if self._cancelled.is_set():
            raise _Cancelled
        waiting = asyncio.timeout(None)
        try:
            async with waiting:
                self._waiting = waiting
                try:
                    return await anext(self._iterator)
                finally:
                    self._waiting = None
        except TimeoutError:
            if waiting.expired():
                raise _Cancelled from None
            raise

    async def close(self) -> None:
        self._watching.cancel()
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            with suppress(Exception):  # how a source ends no longer matters
                await close()

    async def _watch(self) -> None:
        await self._cancelled.wait()
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


async def _flushed(output: OutputWriter) -> None:
    """Send what the source had yielded; that it failed is said already."""
    with suppress(SessionError):
        await output.flush()
