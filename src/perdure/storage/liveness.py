from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from perdure.errors import StorageReadOnly

_LONGEST_NAME: Final = 200
"""What leaves room for an ending in the 255 bytes that file systems take."""


class Liveness:
    """Tells at once that a process on this host has died, by locks that the kernel frees.

    Each worker holds an exclusive `flock` on a file of its own for as long as it lives. A frozen
    process still holds it: frozen is not dead, and its lease decides. Where the platform has no
    `flock`, or no folder is given, nobody is ever known to be dead, and leases decide alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        if hasattr(os, "register_at_fork"):
            # A child that kept the lock would hide the death of its parent.
            forget = weakref.WeakMethod(self._let_go)
            os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def hold(self, holder: str) -> None:
        """Take the lock of a new holder; it is freed by `release` or by the end of the process.

        Raises `StorageReadOnly` when there can be no file for it.
        """
        folder = self._folder
        if sys.platform == "win32" or folder is None:
            return
        try:
            descriptor = _create(folder, holder)
        except OSError as error:
            raise StorageReadOnly(
                f"a worker keeps a lock file in {folder}, and cannot create it ({error}): the"
                " folder must be writable by this user, on a disk with room"
            ) from error
        _try_lock(descriptor)
        self._held[holder] = descriptor

    @contextlib.contextmanager
    def holding(self, holder: str) -> Generator[None]:
        """Take the lock of a new holder, and let go of it if the block raises."""
        self.hold(holder)
        try:
            yield
        except BaseException:
            self.release(holder)
            raise

    def release(self, holder: str) -> None:
        """Let go of a holder's lock and remove its file."""
        descriptor = self._held.pop(holder, None)
        if descriptor is None or self._folder is None:
            return
        # Unlinked while still locked: nobody can take a lock on a name that is about to go.
        with contextlib.suppress(FileNotFoundError):
            _path(self._folder, holder).unlink()
        os.close(descriptor)

    def is_dead(self, holder: str) -> bool:
        """Return whether the holder's process is certainly gone."""
        if sys.platform == "win32" or self._folder is None or holder in self._held:
            return False
        try:
            descriptor = os.open(_path(self._folder, holder), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, holder: str) -> None:
        """Remove the file of a holder that was found dead and has been released."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                _path(self._folder, holder).unlink()

    def close(self) -> None:
        """Let go of every lock."""
        for holder in list(self._held):
            self.release(holder)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _let_go(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()


def _create(folder: Path, holder: str) -> int:
    while True:
        # Not exist_ok, which looks again whether it is one: another process that closes may
        # remove the empty folder at any time.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        try:
            return os.open(_path(folder, holder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if folder.is_symlink():
                raise


def _path(folder: Path, holder: str) -> Path:
    # The name in it may be any text, and as long as it likes.
    name = quote(holder, safe="")
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(holder.encode()).hexdigest()
    return folder / f"{name}.lock"


def _try_lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
