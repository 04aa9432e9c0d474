from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import obstore
from obstore import exceptions

from perdure.errors import StorageBusy, StorageError, StorageReadOnly

_REFUSED: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_WRONG: Final = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    NotImplementedError,
    exceptions.UnknownConfigurationKeyError,
)


async def put(store: Any, path: str, data: bytes) -> None:
    """Put an object; raises a `StorageError`."""
    async with _speaking(path):
        await obstore.put_async(store, path, data)


async def get(store: Any, path: str) -> bytes | None:
    """Return what an object holds, or None when there is none; raises a `StorageError`."""
    async with _speaking(path):
        try:
            found = await obstore.get_async(store, path)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None


async def delete(store: Any, path: str) -> None:
    """Delete an object, if it is there; raises a `StorageError`."""
    async with _speaking(path):
        try:
            await obstore.delete_async(store, path)
        except FileNotFoundError:
            return


@asynccontextmanager
async def _speaking(path: str) -> AsyncGenerator[None]:
    """Raise in its own words what the object store objects to."""
    try:
        yield
    except _REFUSED as error:
        raise StorageReadOnly(
            f"the blob store refuses {path} ({_said(error)}): check its credentials"
        ) from error
    except _WRONG as error:
        raise StorageError(f"the blob store cannot do {path}: {_said(error)}") from error
    except (exceptions.BaseError, OSError) as error:
        raise StorageBusy(
            f"the blob store could not be used for {path} ({_said(error)}): check that it can be"
            " reached; waiting runs go on by themselves"
        ) from error


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
