from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from perdure.errors import (
    InvalidOptions,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from perdure.journal.checkpoint import Checkpoint, Saved, check_key, compare
from perdure.journal.checkpoint_snapshot import (
    SNAPSHOT_LIMIT_BYTES,
    Checkpoints,
    encode_snapshot,
    parse_snapshot,
)

P = ParamSpec("P")
T = TypeVar("T")

FILE_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""Under how many bytes a file of checkpoints stays, unless another limit is given."""

_BUSY_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.002
_BESIDE: Final = (".new", ".lock")
_MODE: Final = 0o600
_SAFELY: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_REFUSED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


class CheckpointFile:
    """Keeps checkpoints in one JSON file; its methods block.

    Whoever writes holds a lock on the file `….lock` beside it, and writes `….new`, which takes the
    place of the old file once it is whole. Whoever reads needs no lock.
    """

    def __init__(
        self, path: Path, limit_bytes: int, busy_seconds: float, probe: Callable[[str], None]
    ) -> None:
        if path.suffix in _BESIDE or "\x00" in str(path):
            raise InvalidOptions(
                f"checkpoints cannot be kept in {path!s}: give them a path without NUL that does"
                f" not end in {' or '.join(_BESIDE)}, which are files beside other ones"
            )
        self.path = path
        self._limit_bytes = limit_bytes
        self._busy_seconds = busy_seconds
        self._probe = probe
        self._made = False
        self._new = path.with_name(f"{path.name}.new")
        self._lock = path.with_name(f"{path.name}.lock")

    def load(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint, or None when there is none, or no file."""
        check_key(run_id, checkpoint_id)
        return self._read().get((run_id, checkpoint_id))

    def save(self, checkpoint: Checkpoint) -> Saved:
        """Write a checkpoint as `compare` says. Durable when it returns: the file, fsynced."""
        checkpoint.validate()
        with self._locked():
            there = self._read()
            saved = compare(there.get(checkpoint.key), checkpoint)
            if saved is Saved.DUPLICATE:
                # Whoever wrote it may have died before its name was synced.
                _sync_folder(self.path.parent)
            else:
                self._write({**there, checkpoint.key: checkpoint})
        return saved

    def remove(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint. Durable when it returns: the file, fsynced."""
        check_key(run_id, checkpoint_id)
        if not self._read():
            return
        with self._locked():
            there = self._read()
            left = {key: each for key, each in there.items() if key != (run_id, checkpoint_id)}
            if len(left) == len(there):
                _sync_folder(self.path.parent)
            else:
                self._write(left)

    def _read(self) -> Checkpoints:
        try:
            # What is no file must not keep whoever opens it waiting.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | _SAFELY)
        except FileNotFoundError:
            return {}
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"{self.path} is no file: give the checkpoints another path")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(self._limit_bytes)
        finally:
            os.close(descriptor)
        return parse_snapshot(data, what=self._what, limit_bytes=self._limit_bytes)

    def _write(self, checkpoints: Checkpoints) -> None:
        data = encode_snapshot(checkpoints.values(), what=self._what, limit_bytes=self._limit_bytes)
        try:
            self._write_new(data)
            self._probe("checkpoint.replace")
            self._new.replace(self.path)
        except BaseException:
            with suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise
        self._probe("checkpoint.replaced")
        _sync_folder(self.path.parent)
        self._probe("checkpoint.done")

    def _write_new(self, data: bytes) -> None:
        # One that is there was left by whoever died, or is a link to somewhere else.
        self._new.unlink(missing_ok=True)
        descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, _MODE)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            self._probe("checkpoint.write")
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            self._probe("checkpoint.sync")
            os.fsync(descriptor)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Be the only one who writes; raises `StorageBusy` if that takes too long."""
        if not self._made:
            _make(self.path.parent)
            self._made = True
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | _SAFELY, _MODE)
        try:
            self._wait_for(descriptor)
            try:
                yield
            finally:
                # Closing alone would not do where a fork has inherited it.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        ends = time.monotonic() + self._busy_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise StorageBusy(
                        f"another process kept the lock {self._lock} for longer than"
                        f" {self._busy_seconds:g} seconds: look whether it still works"
                    ) from None
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    @property
    def _what(self) -> str:
        return f"the checkpoint file {self.path}"


class FileStore:
    """Keeps checkpoints in one JSON file, for any number of processes of one host.

    The file is readable by its owner alone, and made with the folders above it by the first save.
    It stays under `limit_bytes`: one that is larger is neither written nor read. Each save writes
    the whole file, in a thread; a cancelled caller's save may still be written. `probe` is told
    each point of a write.

    Raises `InvalidOptions` for a limit that no file could keep, or that exceeds 32 MiB.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        limit_bytes: int = FILE_LIMIT_BYTES,
        busy_seconds: float = _BUSY_SECONDS,
        probe: Callable[[str], None] | None = None,
    ) -> None:
        if not 0 < limit_bytes <= SNAPSHOT_LIMIT_BYTES:
            raise InvalidOptions(
                f"limit_bytes is {limit_bytes!r}, and has to be from 1 to {SNAPSHOT_LIMIT_BYTES}"
            )
        self._file = CheckpointFile(
            Path(path).absolute(), limit_bytes, busy_seconds, probe or _no_probe
        )

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    async def load_checkpoint(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint, or None when there is none, or no file.

        Raises `InvalidCheckpoint`, `UnsupportedCheckpointVersion` or `CheckpointTooLarge` for a
        file that this store would not have written, or a `StorageError`.
        """
        return await self._done(self._file.load, run_id, checkpoint_id)

    async def save_checkpoint(self, checkpoint: Checkpoint) -> Saved:
        """Write a checkpoint if it goes on from the one that is there, as `compare` says.

        Durable when it returns: the file and its name, fsynced.
        If it raises: as the port says, or as `load_checkpoint`.
        """
        return await self._done(self._file.save, checkpoint)

    async def remove_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint; nothing happens when there is none.

        Durable when it returns: the file and its name, fsynced. If it raises: as `load_checkpoint`.
        """
        await self._done(self._file.remove, run_id, checkpoint_id)

    async def _done(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(work, *arguments, **options)
        except OSError as error:
            raise _storage_error(error, self.path) from error


def _make(folder: Path) -> None:
    """Make a folder with all above it, and sync the names of those that may be new."""
    if folder.is_dir():
        # Whoever made it may have died before; what this user may not read, another one made.
        with suppress(PermissionError):
            _sync_folder(folder.parent)
        return
    if not folder.parent.is_dir():
        _make(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(error: OSError, path: Path) -> StorageError:
    what = f"the checkpoint file {path} cannot be used ({error.strerror or error})"
    if error.errno == errno.ELOOP:
        return StorageError(f"{what}: it, or its lock, is a symbolic link; name the file itself")
    if error.errno in _FULL:
        return StorageFull(f"{what}: make room; what was saved before is safe")
    if error.errno in _REFUSED:
        return StorageReadOnly(
            f"{what}: this user has to be able to read it and to write its folder"
        )
    return StorageError(what)


def _no_probe(point: str) -> None:
    del point
