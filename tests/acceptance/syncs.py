"""Counts what SQLite asks of the disk in this process, by standing before its file system calls."""

from __future__ import annotations

import ctypes
import sqlite3  # noqa: F401 - whose library it is that is looked into
from collections.abc import Callable
from typing import Any

_WAL = 0x80000
_FSYNC_FAILED = 10 | 4 << 8  # SQLITE_IOERR_FSYNC
_SYNC = 5  # where xSync stands in sqlite3_io_methods, after its version
_METHODS = ctypes.c_void_p * 19
_File = ctypes.POINTER(ctypes.c_void_p)  # an open file begins with the address of its methods

_Open = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    _File,
    ctypes.c_int,
    ctypes.c_void_p,
)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _FileSystem(ctypes.Structure):
    """The beginning of a sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    )


class Syncs:
    """Hears of each sync of a write-ahead log that is opened from now on, and may refuse it.

    `synced` is called after each one that succeeded. It cannot be undone: for a child process.
    """

    def __init__(self, synced: Callable[[], None]) -> None:
        self.fails = False
        self._synced = synced
        self._kept: list[Any] = []
        library = _library()
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_FileSystem)
        system = library.sqlite3_vfs_find(None).contents
        self._open = _Open(system.open)
        self._stand_in = _Open(self._opened)
        system.open = ctypes.cast(self._stand_in, ctypes.c_void_p).value

    def _opened(self, system: int, name: int, file: Any, flags: int, told: int) -> int:
        result = self._open(system, name, file, flags, told)
        if result == 0 and flags & _WAL:
            methods = _METHODS.from_buffer_copy(_METHODS.from_address(file[0]))
            stand_in = _Sync(self._between(_Sync(methods[_SYNC])))
            methods[_SYNC] = ctypes.cast(stand_in, ctypes.c_void_p).value
            self._kept += [methods, stand_in]
            file[0] = ctypes.addressof(methods)
        return result

    def _between(self, sync: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def stand_in(file: int, flags: int) -> int:
            result = _FSYNC_FAILED if self.fails else sync(file, flags)
            if result == 0:
                self._synced()
            return result

        return stand_in


def can_be_counted() -> bool:
    """Return whether there is a way to hear of syncs."""
    return hasattr(_library(), "sqlite3_vfs_find")


def _library() -> Any:
    """Return the library that `sqlite3` uses, or the program that has it built in."""
    import _sqlite3

    return ctypes.CDLL(getattr(_sqlite3, "__file__", None))
