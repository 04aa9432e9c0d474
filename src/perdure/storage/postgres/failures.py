from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from perdure.errors import (
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageReadOnly,
)
from perdure.storage.blobs import blob_collected

_LOST: Final = (
    "08",  # the connection failed
    "57P01",  # the server shuts down
    "57P02",
    "57P03",  # the server starts up
    "57P05",  # the session was idle for too long
    "53300",  # it has too many connections
    "25006",  # it became a standby: another one takes over
    "25P03",  # it waited for too long in a transaction
)
_CROSSED: Final = (
    "40001",  # another transaction was faster
    "40P01",  # a deadlock was broken
    "55P03",  # a lock was not to be had
    "57014",  # the server's statement_timeout has passed
)
_BLOB_COLLECTED: Final = "PB001"
"""The code that the triggers of this schema raise."""

_UNPREPARED: Final = (
    "26000",  # the prepared statement is unknown on this connection
    "42P05",  # or known under another meaning
    "0A000",  # or its result has another shape since a migration
)
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|role \".*\" does not exist|database \".*\" does not exist|is not permitted to log in"
    r"|does not support SSL|certificate verify failed|invalid value for parameter"
)
"""What a server says to whom it will not let in. A refusal to connect comes without a code."""
_NO_DATABASE: Final = re.compile(r"database \".*\" does not exist")
_COMES_BACK: Final = re.compile(r"is (starting up|shutting down|in recovery mode)")


class PieceGone(StorageError):
    """A piece that a record's input begins with is not there (any more)."""


class NameTaken(StorageError):
    """Something of that name was written before."""


def passes(error: psycopg.Error) -> bool:
    """Tell whether the same statements may succeed when they are sent again."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and not _refused(error)
    return state.startswith(_LOST + _CROSSED + _UNPREPARED)


def comes_back(error: psycopg.Error) -> bool:
    """Tell whether a server said that it is on its way up or down."""
    return error.sqlstate is None and _COMES_BACK.search(str(error)) is not None


def _refused(error: psycopg.Error) -> bool:
    return error.sqlstate is None and _REFUSED.search(str(error)) is not None


def unprepared(error: psycopg.Error) -> bool:
    """Tell whether a statement failed because its connection has another server behind it now."""
    return (error.sqlstate or "").startswith(_UNPREPARED)


def has_no_room(error: StorageError) -> bool:
    """Tell whether a value was refused that no column takes: a number too large, or a NUL."""
    return isinstance(error.__cause__, psycopg.DataError)


def storage_error(error: psycopg.Error, waited_seconds: float = 0.0) -> StorageError:
    """Return what an error of PostgreSQL means, and what to do about it."""
    said = " ".join(str(error).split()) or type(error).__name__
    known = _known(error, said)
    if known is not None:
        return known
    if isinstance(error, PoolTimeout):
        return StorageBusy(
            f"no connection to the database was to be had for {waited_seconds:.0f} seconds: check"
            " that the server of the URL runs, and how many connections it allows"
        )
    if passes(error):
        waited = f" for {waited_seconds:.0f} seconds" if waited_seconds else ""
        return StorageBusy(
            f"the database server could not be used{waited} ({said}): check that it runs at the"
            " host and port of the URL; what was acknowledged is safe"
        )
    return StorageError(f"the database failed: {error.sqlstate or type(error).__name__}: {said}")


def _known(error: psycopg.Error, said: str) -> StorageError | None:
    if isinstance(error, errors.DiskFull):
        return StorageFull(
            f"the disk of the database server is full ({said}); what was acknowledged is safe: make"
            " room, and waiting runs go on by themselves"
        )
    if isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction):
        return StorageReadOnly(
            f"the database refuses this ({said}): the user of the URL needs to own the schema,"
            " on a primary server"
        )
    kinds = errors.InvalidAuthorizationSpecification | errors.InvalidCatalogName
    if isinstance(error, kinds) or _refused(error):
        # A server may say it in another language, if with a code.
        missing = isinstance(error, errors.InvalidCatalogName) or _NO_DATABASE.search(said)
        kind = StorageMissing if missing else StorageError
        return kind(
            f"the database server refuses the connection ({said}): check the user, the password and"
            " the database of the URL"
        )
    if isinstance(error, errors.IntegrityError) or error.sqlstate == _BLOB_COLLECTED:
        return _unmatched(error, said)
    return _changed(error, said)


def _changed(error: psycopg.Error, said: str) -> StorageError | None:
    """Return what it means that the database is not what perdure has left there."""
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn):
        return StorageMissing(
            "what perdure keeps in the database is not all there any more"
            f" ({error.diag.message_primary or said}): the schema of the URL was dropped, renamed"
            " or changed. Bring it back, and workers go on by themselves"
        )
    if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
        return StorageCorrupt(f"the database is damaged ({said}): restore it from a backup")
    return None


def _unmatched(error: psycopg.Error, said: str) -> StorageError | None:
    """Return what it means that a row does not go with others that are there."""
    if error.sqlstate == _BLOB_COLLECTED:
        return blob_collected()
    if isinstance(error, errors.ForeignKeyViolation):
        return PieceGone(f"the database no longer holds what an input begins with: {said}")
    if isinstance(error, errors.UniqueViolation):
        return NameTaken(f"the database holds another one of that name: {said}")
    return None
