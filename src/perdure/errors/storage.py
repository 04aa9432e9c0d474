from __future__ import annotations

from perdure.errors.root import PerdureError


class StorageError(PerdureError):
    """The place where runs live could not read or write."""


class InvalidUrl(StorageError):
    """An App URL is malformed or of a scheme that perdure does not know."""


class MissingExtra(StorageError):
    """A part of perdure was used whose optional dependency is not installed."""


class StorageMissing(StorageError):
    """There is no database where one was to be looked at."""


class BlobsUnavailable(StorageMissing):
    """What is needed stands in a blob store that was not given, or in another than was given."""


class StorageBusy(StorageError):
    """Another process held the write lock for longer than the busy timeout."""


class StorageFull(StorageError):
    """The disk is full; what was acknowledged before is safe."""


class StorageReadOnly(StorageError):
    """The database file or its folder cannot be written."""


class StorageCorrupt(StorageError):
    """The file is not a database of perdure, or its content fails a check."""


class KeyUnavailable(StorageError):
    """A value is encrypted with a key that was not given, or one is to be and cannot be."""


class SchemaTooNew(StorageError):
    """The database was written by a newer release of perdure; upgrade this one."""
