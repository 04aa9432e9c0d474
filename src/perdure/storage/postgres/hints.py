from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from perdure.errors import StorageError
from perdure.observe import log
from perdure.storage.postgres.database import Database, end

_WITH_HINTS_SECONDS: Final = 1.0
_WITHOUT_HINTS_SECONDS: Final = 0.2
_TEST_SECONDS: Final = 5.0
_REST_SECONDS: Final = 0.01
_RETRY_SECONDS: Final = 5.0


class Hints:
    """Says when it is worth looking at the database again.

    Others tell through NOTIFY what they changed. That is a hint and nothing more: who listens
    looks from time to time anyway, and more often as long as no hints come through, as behind a
    pooler, which would hand a listening connection to others. Whether they do is tested now and
    then.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._channel = database.address.schema
        self._changed = True
        self._heard: set[str] = set()
        self._works = False
        self._tested = asyncio.Event()
        self._looked_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling = False

    @property
    def works(self) -> bool:
        """Whether hints come through at present."""
        return self._works

    def open(self) -> None:
        """Begin to listen, unless there is a pooler in between."""
        self._spawn(self._listen_for_ever())

    def changed(self) -> bool:
        """Return whether to look again: after a hint, and once in a while without any."""
        now = time.monotonic()
        patience = _WITH_HINTS_SECONDS if self._works else _WITHOUT_HINTS_SECONDS
        if not self._changed and now - self._looked_at < patience:
            return False
        self._changed = False
        self._looked_at = now
        return True

    def tell(self) -> None:
        """Tell the others that something has changed, soon and once for many times."""
        if not self._telling:
            self._telling = True
            self._spawn(self._tell())

    async def close(self) -> None:
        """Stop listening."""
        await end(self._tasks)

    async def _tell(self, payload: str = "") -> None:
        await asyncio.sleep(_REST_SECONDS)
        self._telling = False
        with suppress(StorageError):
            await self._db.read("notify", channel=self._channel, payload=payload)

    async def _listen_for_ever(self) -> None:
        # PgBouncer 1.18 ends when a connection that it has handed on gets a hint for the client
        # before, at the moment at which it passes on that the present one is to be interrupted.
        while self._db.direct:
            with suppress(psycopg.Error, OSError):
                # A connection of its own: while one listens, it runs nothing else.
                async with await AsyncConnection.connect(
                    self._db.address.conninfo, autocommit=True
                ) as connection:
                    await connection.execute(f'LISTEN "{self._channel}"'.encode())
                    await self._listen(connection)
            self._lose()
            # Whatever was told meanwhile is not told again.
            self._changed = True
            await asyncio.sleep(_RETRY_SECONDS)
        self._lose()

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        while self._db.direct:
            mark = secrets.token_hex(8)
            self._spawn(self._tell(mark))
            deadline = time.monotonic() + _TEST_SECONDS
            async for hint in connection.notifies(timeout=_TEST_SECONDS):
                self._changed = self._changed or not hint.payload
                if hint.payload == mark:
                    if not self._works:
                        log.debug("hints of other processes come through")
                    self._works = True
                    self._tested.set()
                    break
            else:
                self._lose()
            async for hint in connection.notifies(timeout=max(0.0, deadline - time.monotonic())):
                self._changed = self._changed or not hint.payload

    async def test(self) -> bool:
        """Return whether hints come through, once that is known."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tested.wait(), _TEST_SECONDS)
        return self._works

    def _lose(self) -> None:
        self._tested.set()
        if self._works:
            log.info("no hints of other processes come through: looking more often instead")
        self._works = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
