from __future__ import annotations

import asyncio
import errno
import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import (
    InvalidOptions,
    MissingExtra,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from perdure.storage.blobs import LEAST_OVER_BYTES, BlobStore

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BlobStore", "FileBlobs", "ObjectBlobs"]

_OVER_BYTES: Final = 256 * 1024
_MODE: Final = 0o600
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_REFUSED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


class FileBlobs:
    """Keeps the large values of one database as files in a folder, which is made if need be.

    All processes on the database need the same folder, on a file system that keeps what was synced.
    A value of more than `over_bytes`, after it was packed, is a file. Raises `InvalidOptions` for a
    limit below 4096.
    """

    def __init__(self, folder: str | Path, *, over_bytes: int = _OVER_BYTES) -> None:
        # Not a Path, which costs a tenth of importing perdure.
        self.folder = os.path.abspath(folder)  # noqa: PTH100
        self._over_bytes = _checked(over_bytes)
        self._made: set[str] = set()

    @property
    def over_bytes(self) -> int:
        """How large a value has to be, packed, to be a file: more than this."""
        return self._over_bytes

    async def put(self, name: str, data: bytes) -> None:
        """Write a file. Durable when it returns: the file and its name, fsynced."""
        await self._done(self._put, self.place(name), data)

    async def get(self, name: str) -> bytes | None:
        """Return what a file holds, or None when there is none; raises a `StorageError`."""
        return await self._done(_read, self.place(name))

    async def delete(self, name: str) -> None:
        """Delete a file. Durable when it returns: that it is gone, fsynced."""
        await self._done(_delete, self.place(name))

    def place(self, name: str) -> str:
        """Return the path of a file: in one of 256 folders, so that none holds too many."""
        return f"{self.folder}{os.sep}{name[:2]}{os.sep}{name[2:]}"

    def _put(self, path: str, data: bytes) -> None:
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in self._made:
            # Also one that is there: whoever made it may not have come to sync it yet.
            _make(folder)
            self._made.add(folder)
        _write(path, data)

    async def _done(self, work: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise _storage_error(error, self.folder) from error


class ObjectBlobs:
    """Keeps the large values of one database in an object store: S3, GCS, Azure and others.

    `store` is one of `obstore.store`, such as `S3Store("my-bucket", region="eu-central-1")`, which
    knows the credentials and how often to try; `prefix` comes before the names of the objects, and
    tells databases apart that share a bucket. A value of more than `over_bytes`, after it was
    packed, is an object. Raises `MissingExtra`, or `InvalidOptions` for a limit below 4096.
    """

    def __init__(
        self, store: Any, *, prefix: str = "perdure", over_bytes: int = _OVER_BYTES
    ) -> None:
        try:
            self._objects: Any = importlib.import_module("perdure.storage.objects")
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "object stores need their extra: pip install 'perdure[blobs]'"
            ) from error
        self.store = store
        self.prefix = prefix.strip("/")
        self._over_bytes = _checked(over_bytes)

    @property
    def over_bytes(self) -> int:
        """How large a value has to be, packed, to be an object: more than this."""
        return self._over_bytes

    async def put(self, name: str, data: bytes) -> None:
        """Put an object. Durable when it returns: as the store promises."""
        await self._objects.put(self.store, self.place(name), data)

    async def get(self, name: str) -> bytes | None:
        """Return what an object holds, or None when there is none; raises a `StorageError`."""
        return await self._objects.get(self.store, self.place(name))

    async def delete(self, name: str) -> None:
        """Delete an object; earlier versions that a bucket keeps of it stay."""
        await self._objects.delete(self.store, self.place(name))

    def place(self, name: str) -> str:
        """Return the path of an object in its store."""
        return f"{self.prefix}/{name[:2]}/{name[2:]}"


def _checked(over_bytes: int) -> int:
    if over_bytes < LEAST_OVER_BYTES:
        raise InvalidOptions(f"over_bytes is {LEAST_OVER_BYTES} or more, not {over_bytes!r}")
    return over_bytes


def _make(folder: str) -> None:
    """Make a folder with all above it, and sync the names of those that may be new."""
    above = os.path.dirname(folder)  # noqa: PTH120
    if not os.path.isdir(above):  # noqa: PTH112
        _make(above)
    with suppress(FileExistsError):
        os.mkdir(folder)  # noqa: PTH102
    _sync_folder(above)


def _write(path: str, data: bytes) -> None:
    new, descriptor = _begun(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)  # noqa: PTH105
    except OSError:
        with suppress(OSError):
            os.unlink(new)  # noqa: PTH108
        raise
    _sync_folder(os.path.dirname(path))  # noqa: PTH120


def _begun(path: str) -> tuple[str, int]:
    """Return a new file for what is to be written, and its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with suppress(FileExistsError):
        return _new(path), os.open(_new(path), flags, _MODE)
    # Somebody writes the same value, or was killed while they did. To write in their file would be
    # to give the name to one that is not whole.
    own = f"{path}.{os.urandom(8).hex()}"
    return own, os.open(own, flags, _MODE)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except FileNotFoundError:
        return None


def _delete(path: str) -> None:
    found = False
    for each in (path, _new(path)):
        with suppress(FileNotFoundError):
            os.unlink(each)  # noqa: PTH108
            found = True
    if found:
        _sync_folder(os.path.dirname(path))  # noqa: PTH120


def _new(path: str) -> str:
    """Return what a file is called until it is whole, unless another is called so."""
    return f"{path}.new"


def _sync_folder(folder: str) -> None:
    if os.name == "nt":
        return  # nobody can there
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(error: OSError, folder: str) -> StorageError:
    what = f"the folder of blobs {folder} cannot be used ({error.strerror or error})"
    if error.errno in _FULL:
        return StorageFull(f"{what}: make room, and waiting runs go on by themselves")
    if error.errno in _REFUSED:
        return StorageReadOnly(f"{what}: it must be writable by this user")
    return StorageError(what)
