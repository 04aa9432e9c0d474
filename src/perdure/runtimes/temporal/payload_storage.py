from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from perdure.errors import StorageCorrupt
from perdure.runtimes.temporal.answer import refusal

_NAME: Final = "perdure.blobs"
_SHA256: Final = "sha256"
_DIGITS: Final = frozenset("0123456789abcdef")


class Blobs(Protocol):
    """Where payloads are kept; `perdure.blobs.FileBlobs` and `ObjectBlobs` are two."""

    @property
    def over_bytes(self) -> int:
        """How large a payload has to be to be kept here: more than this."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Keep a blob; putting it again changes nothing, also while somebody else puts it."""
        ...

    async def get(self, name: str) -> bytes | None:
        """Return a blob, or None when there is none of that name."""
        ...

    def place(self, name: str) -> str:
        """Return what people call the place of a blob."""
        ...


class BlobDriver(StorageDriver):
    """Keeps payloads as blobs that are named by the SHA-256 of what they hold.

    So storing one again changes nothing, and what comes back is what was stored: a blob that is
    missing or was changed raises an `ApplicationError` that nobody tries again, whose type is
    `StorageCorrupt` and whose cause is that error. A blob store that cannot be asked raises its
    `StorageError`, and Temporal tries again.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def name(self) -> str:
        """Return what references call this driver."""
        return _NAME

    def type(self) -> str:
        """Return what kind of driver this is, for people who look at workers."""
        return _NAME

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Return references to payloads. Durable when it returns: their blobs, as the store says.

        If it raises: the `StorageError` of the store.
        """
        del context
        return [await self._stored(each.SerializeToString()) for each in payloads]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return what references stand for."""
        del context
        return [await self._retrieved(claim.claim_data.get(_SHA256, "")) for claim in claims]

    async def _stored(self, data: bytes) -> StorageDriverClaim:
        name = hashlib.sha256(data).hexdigest()
        await self._blobs.put(name, data)
        return StorageDriverClaim({_SHA256: name})

    async def _retrieved(self, name: str) -> Payload:
        # A reference comes from a history, and becomes a part of a path.
        if len(name) != 64 or not _DIGITS.issuperset(name):
            raise _lost(f"a payload's reference names no blob: {name[:100]!r}")
        data = await self._blobs.get(name)
        where = f"a payload, {self._blobs.place(name)},"
        if data is None:
            raise _lost(f"{where} is not there: restore it, and keep payloads as long as histories")
        if hashlib.sha256(data).hexdigest() != name:
            raise _lost(f"{where} was changed: restore it from a backup")
        return Payload.FromString(data)


def payload_storage(blobs: Blobs) -> ExternalStorage:
    """Return what keeps the large payloads of a client and its workers in a store of blobs.

        converter = dataclasses.replace(
            DataConverter.default, external_storage=payload_storage(FileBlobs("payloads"))
        )
        client = await Client.connect(address, data_converter=converter)

    A payload of more than `blobs.over_bytes` is a blob, encrypted already where the converter has a
    `payload_codec`, and histories hold a reference to it. Give it a folder or a prefix of its own,
    which all clients and workers of the namespace reach. Nothing deletes a blob.
    """
    return ExternalStorage(drivers=[BlobDriver(blobs)], payload_size_threshold=blobs.over_bytes + 1)


def _lost(message: str) -> ApplicationError:
    return refusal(StorageCorrupt(message))
