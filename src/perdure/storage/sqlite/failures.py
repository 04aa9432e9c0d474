from __future__ import annotations

import sqlite3

from perdure.errors import (
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from perdure.storage.blobs import blob_collected


def storage_error(error: sqlite3.Error) -> StorageError:
    """Return what an error of SQLite means, and what to do about it."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StorageBusy(
            "another process holds the database's write lock; end the program that keeps a"
            " transaction open on it"
        )
    if name in {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"}:
        return StorageFull(
            f"the disk of the database is full ({error}); what was acknowledged is safe: make"
            " room, and waiting runs go on by themselves"
        )
    if name == "SQLITE_CONSTRAINT_TRIGGER":
        return blob_collected()
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StorageReadOnly(
            f"the database cannot be written ({error}): its file and its folder must be writable"
            " by this user"
        )
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StorageCorrupt(
            f"the file is not a database that perdure can use ({error}): check the path, or"
            " restore it from a backup"
        )
    return StorageError(f"the database failed: {name or type(error).__name__}: {error}")
