from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.effects.audit import AuditValue, allowed
from perdure.errors import EngineClosed, StorageError, StorageFull, StorageReadOnly
from perdure.urls import location_of

# For reading too: whoever opens the file looks at how it ends.
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
_MODE: Final = 0o600


class _Line:
    """A line that waits to be written, and what came of it."""

    __slots__ = ("content", "done", "error")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.done = False
        self.error: OSError | None = None


class AuditFile:
    """Appends audit records to a file, one JSON object a line, `at` first.

    Any number of processes may append to one file. It is made by the first write, for its owner's
    eyes only, and made again when it was moved away meanwhile, as the rotation of logs does.
    Raises `StorageReadOnly` when its folder is missing.
    """

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock = clock or SystemClock()
        self._waiting: deque[_Line] = deque()
        self._lock = threading.Lock()
        self._file: int | None = None
        if not self.path.parent.is_dir():
            raise self._failure(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))

    async def write(self, facts: Mapping[str, AuditValue]) -> None:
        """Append a record with the allowed keys of `facts`; the rest is dropped.

        Durable when it returns: the line, fsynced. Records that wait at the same time share an
        fsync, and a cancelled caller's is written all the same.
        If it raises: the line may be in the file or not; a `StorageError` says why.
        """
        record = {"at": _instant(self._clock.now()), **allowed(facts)}
        line = _Line(msgspec.json.encode(record) + b"\n")
        self._waiting.append(line)
        await asyncio.shield(asyncio.to_thread(self._flush, line))

    async def close(self) -> None:
        """Write what waits and close the file; a later write opens it again."""
        await asyncio.to_thread(self._finish)

    def _flush(self, line: _Line) -> None:
        """Write whatever waits, unless somebody else took `line` along."""
        with self._lock:
            if not line.done:
                self._write_waiting()
        if line.error is not None:
            raise self._failure(line.error) from line.error

    def _finish(self) -> None:
        with self._lock:
            self._write_waiting()
            self._drop()

    def _write_waiting(self) -> None:
        lines: list[_Line] = []
        while self._waiting:
            lines.append(self._waiting.popleft())
        try:
            self._append([line.content for line in lines])
        except OSError as error:
            # Whoever opens the file again ends what may be half a line.
            self._drop()
            for line in lines:
                line.error = error
        for line in lines:
            line.done = True

    def _append(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        file = self._open()
        for line in lines:
            # One write a line, so that those of other processes stand before or after it.
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)

    def _open(self) -> int:
        if self._file is not None and not self._stands(self._file):
            self._drop()
        if self._file is None:
            self._file = os.open(self.path, _FLAGS, _MODE)
            _end_line(self._file)
            _sync_folder(self.path.parent)
        return self._file

    def _stands(self, file: int) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(file))
        except FileNotFoundError:
            return False

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _failure(self, error: OSError) -> StorageError:
        what = f"the audit file {self.path} cannot be written ({error.strerror or error})"
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                folder = self.path.parent
                return StorageReadOnly(f"{what}: create the folder {folder}, or fix the path")
            case errno.EACCES | errno.EPERM | errno.EROFS | errno.EISDIR:
                return StorageReadOnly(f"{what}: file and folder must be writable by this user")
            case errno.ENOSPC | errno.EDQUOT:
                return StorageFull(f"{what}: make room")
            case _:
                return StorageError(what)


class AuditTable:
    """Keeps audit records in the table `audit` of a database, which may hold the runs too.

    Opened by its first use, for the event loop of that use, and closed by `close`.
    """

    def __init__(self, url: str, *, busy_seconds: float = 60.0, clock: Clock | None = None) -> None:
        self.url = url
        self._busy_seconds = busy_seconds
        self._clock = clock or SystemClock()
        self._location = location_of(
            url
        )  # a malformed URL is refused here, and not at the first use
        self._table: Any = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def write(self, facts: Mapping[str, AuditValue]) -> None:
        """Add a record with the allowed keys of `facts`; the rest is dropped.

        Durable when it returns: the record, fsynced. If it raises: nothing was written.
        """
        await (await self._ready()).append(allowed(facts))

    async def read(
        self, operation_key: str | None = None, limit: int = 100
    ) -> list[dict[str, AuditValue]]:
        """Return records, of one effect or of all, the newest first; each begins with `at`."""
        rows = await (await self._ready()).read(operation_key, limit)
        return [{"at": _instant(at), **facts} for at, facts in rows]

    async def close(self) -> None:
        """Write what waits and close the file; a later use opens it again."""
        table, self._table = self._table, None
        self._loop = None
        if table is not None:
            await table.close()

    async def _ready(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop not in {None, loop}:
            raise EngineClosed(
                "this audit was opened in another event loop: close it there, or open another one"
                " for this loop"
            )
        async with self._opening:
            if self._table is None:
                self._table = await self._location.open_audit(self._clock, self._busy_seconds)
                self._loop = loop
            return self._table


def _instant(seconds: float) -> str:
    """Return wall seconds as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _end_line(file: int) -> None:
    """End a last line that was cut off, for want of room or of power."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable, without which its content is lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
