from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from perdure.channels.stored.signal import Signal
from perdure.clock import Clock
from perdure.errors import SendFailed, SessionClosed, StorageError
from perdure.session.store import SessionStore, SessionWrite

_GATHERING_SECONDS: Final = 0.015
_MOST: Final = 500
"""How many writes a transaction has at most, so that none waits for too many others."""


class _Waiting:
    """A write whose caller waits for it."""

    __slots__ = ("settled", "write")

    def __init__(self, write: SessionWrite) -> None:
        self.write = write
        self.settled: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()

    def refuse(self, error: BaseException) -> None:
        if not self.settled.done():
            self.settled.set_exception(error)


class Writer:
    """Writes to all sessions, in one transaction what comes at about the same time.

    One transaction is under way at a time; what comes meanwhile is of the next. Every caller waits
    for its write, so nothing piles up but callers. `written` is told of each write that is done,
    before its caller is.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        written: Callable[[SessionWrite, Sequence[str]], None],
    ) -> None:
        self._store = store
        self._written = written
        self._waiting: deque[_Waiting] = deque()
        self._arrived = Signal(clock)
        self._pressed = Signal(clock)
        self._closed = False

    async def write(self, write: SessionWrite, *, soon: bool) -> Sequence[str]:
        """Write, and return the serials or the version; `soon` does not wait for others to come.

        A caller that is cancelled before its transaction began has written nothing.
        Durable when it returns: the write, fsynced.
        If it raises: `LeaseLost` or what else the store refuses it with, and nothing is written;
        after `SendFailed` nobody knows.
        """
        if self._closed:
            raise _closed()
        waiting = _Waiting(write)
        self._waiting.append(waiting)
        self._arrived.give()
        if soon or len(self._waiting) >= _MOST:
            self._pressed.give()
        return await waiting.settled

    def close(self) -> None:
        """Take no more writes; `run` ends with the last of those that wait."""
        self._closed = True
        self._arrived.give()
        self._pressed.give()

    async def run(self) -> None:
        """Write what waits, until it is closed."""
        try:
            while self._waiting or not self._closed:
                if not self._waiting:
                    await self._arrived.wait(None)
                    continue
                if len(self._waiting) < _MOST and not self._closed:
                    await self._pressed.wait(_GATHERING_SECONDS)
                await self._commit()
        finally:
            self._closed = True
            for waiting in self._waiting:
                waiting.refuse(_closed())

    async def _commit(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
        batch = [waiting for waiting in taken if not waiting.settled.done()]
        if not batch:
            return
        try:
            outcomes = await self._store.write_session([waiting.write for waiting in batch])
        except BaseException as error:
            for waiting in batch:
                waiting.refuse(_failed(error))
            if not isinstance(error, Exception):
                raise
            return
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                waiting.refuse(_failed(outcome) if isinstance(outcome, StorageError) else outcome)
                continue
            self._written(waiting.write, outcome)
            if not waiting.settled.done():
                waiting.settled.set_result(outcome)


def _failed(error: BaseException) -> SendFailed:
    failed = SendFailed(f"nobody knows whether it was written: {error}; write it again")
    failed.__cause__ = error
    return failed


def _closed() -> SessionClosed:
    return SessionClosed("the channels are closed; open the App again to write to them")
