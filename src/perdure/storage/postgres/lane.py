from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from perdure.errors import StorageBusy
from perdure.storage.postgres.arrays import Column
from perdure.storage.postgres.database import OF_ONE, Database
from perdure.storage.postgres.single import values_of

_MOST_ROWS: Final = 256
_MOST_BYTES: Final = 4 * 1024 * 1024

Row = Mapping[str, Any]


class _Waiting:
    """A row on its way, and what the statement returned for it; None for nothing."""

    __slots__ = ("future", "key", "more", "row", "size", "what")

    def __init__(
        self, row: Row, what: str, key: Hashable, more: Mapping[str, Sequence[Any]]
    ) -> None:
        self.row = row
        self.what = what
        self.key = key
        self.more = more
        values = (*row.values(), *(value for column in more.values() for value in column))
        self.size = sum(len(value) for value in values if type(value) is bytes)
        self.future: asyncio.Future[tuple[Any, ...] | None]
        self.future = asyncio.get_running_loop().create_future()


class Lane:
    """Sends the rows of one statement, and all that wait together: they share a commit.

    While one statement is under way, the rows of the next gather. A row whose statement failed for
    the sake of another is sent again alone. A caller that is cancelled leaves its row on its way.

    `columns` are the kinds of the statement's columns, and `extra` those of columns that a row may
    bring any number of values for.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        columns: Mapping[str, str],
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._db = database
        self._name = name
        self._columns = columns
        self._extra = extra or {}
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def send(
        self,
        row: Row,
        what: str,
        *,
        key: Hashable = None,
        more: Mapping[str, Sequence[Any]] | None = None,
    ) -> tuple[Any, ...] | None:
        """Write a row and return what the statement returns for it, without the place.

        Two rows of one `key` are never in one statement. `more` holds the values of the extra
        columns.

        Durable when it returns: what the statement writes for the row, fsynced.
        If it raises: a `StorageError`; after a `StorageBusy`, nobody knows whether it was written.
        """
        waiting = _Waiting(row, what, key, more or {})
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name=f"perdure {self._name}")
        return await asyncio.shield(waiting.future)

    async def close(self) -> None:
        """Wait until everything is written."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._write(self._batch())
        finally:
            self._task = None

    def _batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        keys: set[Hashable] = set()
        size = 0
        while self._waiting and len(batch) < _MOST_ROWS and (size < _MOST_BYTES or not batch):
            if self._waiting[0].key in keys:
                break
            waiting = self._waiting.popleft()
            batch.append(waiting)
            size += waiting.size
            if waiting.key is not None:
                keys.add(waiting.key)
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        what = [waiting.what for waiting in batch]
        try:
            rows = await self._db.write(*self._statement(batch), what)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for the write
            if len(batch) == 1 or isinstance(error, StorageBusy):
                for waiting in batch:
                    _fail(waiting, error)
            else:
                # One row's failure must not undo its neighbours'.
                for waiting in batch:
                    await self._write([waiting])
        except BaseException as error:
            for waiting in [*batch, *self._waiting]:
                _fail(waiting, error)
            self._waiting.clear()
            raise
        else:
            found = {place: rest for place, *rest in rows}
            for place, waiting in enumerate(batch, 1):
                if not waiting.future.done():
                    rest = found.get(place)
                    waiting.future.set_result(None if rest is None else tuple(rest))

    def _statement(self, batch: list[_Waiting]) -> tuple[str, dict[str, Any]]:
        first = batch[0]
        if len(batch) == 1 and not any(first.more.values()):
            return self._name + OF_ONE, values_of(self._columns, first.row)
        return self._name, self._parameters(batch)

    def _parameters(self, batch: list[_Waiting]) -> dict[str, Column]:
        rows = [waiting.row for waiting in batch]
        parameters = {
            name: Column(kind, [row[name] for row in rows]) for name, kind in self._columns.items()
        }
        for name, kind in self._extra.items():
            values = [value for waiting in batch for value in waiting.more.get(name, ())]
            parameters[name] = Column(kind, values)
        return parameters


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
        waiting.future.exception()  # a caller that was cancelled does not ask for it
