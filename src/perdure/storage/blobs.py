from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from perdure.engine.retention import BlobsFound
from perdure.errors import BlobsUnavailable, StorageCorrupt, StorageError
from perdure.storage.documents import BLOB_NAME_BYTES, Documents, Piece
from perdure.storage.packing import packed_apart
from perdure.storage.pieces import (
    IN_BLOB,
    PLAIN,
    Beginning,
    Packed,
    Split,
    pack,
    pack_rest,
    rest_bytes,
)

LEAST_OVER_BYTES: Final = 4096
"""The least limit of a store: what is smaller comes along when a whole journal is read."""

_COLLECTED_AFTER_SECONDS: Final = 3600.0
_SWEPT_AT_ONCE: Final = 100
_AT_ONCE: Final = 8
_LOOKED_FOR: Final = 8
"""How many blobs are read to know whether a store is the right one."""


class BlobStore(Protocol):
    """The port through which large values are kept outside of the database.

    A name is 64 characters of `0-9 a-f`, the SHA-256 of what is put under it, and never used for
    anything else. A store belongs to one database.
    """

    @property
    def over_bytes(self) -> int:
        """How large a value has to be, packed, to be kept here: more than this, 4096 or more."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Keep a blob; putting it again changes nothing.

        Durable when it returns: the blob, on whatever the store promises to keep.
        If it raises: a `StorageError`.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """Return a blob, or None when there is none of that name; raises a `StorageError`."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a blob, and what an interrupted `put` left of it, if there is any.

        Durable when it returns: the deletion.
        If it raises: a `StorageError`.
        """
        ...

    def place(self, name: str) -> str:
        """Return what people call the place of a blob: the path of a file, for instance."""
        ...


class Ledger(Protocol):
    """What a database notes of blobs that no row of it needs: not yet, or no longer.

    A row that names a blob takes the note of it away, in its own transaction, and is refused when
    there is none; a row that is deleted leaves one.
    """

    async def note_blobs(self, names: Sequence[bytes]) -> None:
        """Note blobs that are about to be put. Durable when it returns: the notes, fsynced."""
        ...

    async def condemn_blobs(self, seconds: float, limit: int) -> Sequence[bytes]:
        """Return blobs that no row needs, and that none can need from now on.

        Those are blobs of deleted rows, and blobs that were noted so many seconds ago.
        Durable when it returns: that none can.
        """
        ...

    async def forget_blobs(self, names: Sequence[bytes]) -> None:
        """Forget blobs that were deleted. Durable when it returns: that, fsynced."""
        ...


class Blobs:
    """Keeps the large parts of documents in a blob store, and finds them there again.

    A blob is noted and put before the row that needs it is written, so that no row ever names one
    that is not there. Each is put for one row alone: its bytes, and so its name, are like no
    others, and nobody can need it again once that row is gone.
    """

    def __init__(self, store: BlobStore | None, rows: Documents, ledger: Ledger) -> None:
        self._store = store
        self._rows = rows
        self._ledger = ledger

    def concern(self, wholes: Sequence[Split]) -> bool:
        """Return whether a part of some documents may be large enough for a blob."""
        store = self._store
        return store is not None and any(len(one.document) > store.over_bytes for one in wholes)

    async def lift_rests(self, wholes: Sequence[Split]) -> list[Split]:
        """Return documents whose rests are packed and, where they are large, in blobs."""
        wholes = await packed_apart(wholes)
        store = self._store
        if store is None:
            return wholes
        load = _Load(self._rows, store.over_bytes)
        lifted = [
            msgspec.structs.replace(whole, packed=load.kept(pack_rest(whole)))
            if rest_bytes(whole) > store.over_bytes
            else whole
            for whole in wholes
        ]
        await self._put(store, load)
        return lifted

    async def lift_pieces(self, beginnings: Sequence[Beginning]) -> list[Beginning]:
        """Return beginnings whose last parts are packed and in blobs, where they are large."""
        store = self._store
        if store is None:
            return [*beginnings]
        load = _Load(self._rows, store.over_bytes)
        lifted = [
            msgspec.structs.replace(one, packed=load.kept(pack(one.part)))
            if len(one.part) > store.over_bytes and one.packed is None
            else one
            for one in beginnings
        ]
        await self._put(store, load)
        return lifted

    async def seal_again(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        """Put blobs again that were put without a key; return the new references by old names.

        The old ones go when the rows that need them have the new ones, and the next `sweep` comes.
        """
        references: dict[bytes, bytes] = {}
        load = _Load(self._rows, 0)
        for name, data in (await self._fetched("what is encrypted", names)).items():
            _, references[name] = load.kept((PLAIN, data))
        if self._store is not None:
            await self._put(self._store, load)
        return references

    async def document(
        self, place: str, pieces: Sequence[Piece], packing: int, stored: bytes
    ) -> bytes:
        """Return a document, put together from its pieces and its rest, in blobs or not.

        Raises `StorageCorrupt` where something is not what was written or a blob is gone,
        `KeyUnavailable`, `BlobsUnavailable` without a blob store, or another `StorageError`.
        """
        references = self._rows.references(place, pieces, packing, stored)
        held: Mapping[bytes, bytes] | None = None
        if references:
            held = await self._fetched(place, references)
        return self._rows.document(place, pieces, packing, stored, held)

    async def sweep(self) -> None:
        """Delete the blobs that no row needs any more, or never came to.

        Durable when it returns: the deletions. Raises `BlobsUnavailable` when there are some and no
        blob store, or another `StorageError`; the next call goes on.
        """
        while names := await self._ledger.condemn_blobs(_COLLECTED_AFTER_SECONDS, _SWEPT_AT_ONCE):
            store = self._store
            if store is None:
                raise BlobsUnavailable(
                    "what was deleted is gone from the database, but some of it stands in a blob"
                    " store that was not given: open the store with blobs=…, and commands with"
                    " --app, to delete that as well"
                )
            await _each(names, lambda name, store=store: store.delete(name.hex()))
            await self._ledger.forget_blobs(names)

    async def look(self, names: Callable[[int], Awaitable[Sequence[bytes]]]) -> BlobsFound:
        """Look whether some blobs are in the store that was given; `names` returns so many."""
        store = self._store
        if store is None:
            return BlobsFound(0, [])
        looked_for = [name.hex() for name in await names(_LOOKED_FOR)]
        missing = [store.place(name) for name in looked_for if await store.get(name) is None]
        return BlobsFound(len(looked_for), missing)

    async def _put(self, store: BlobStore, load: _Load) -> None:
        if load.blobs:
            await self._ledger.note_blobs([*load.blobs])
            await _each(load.blobs.items(), lambda blob: store.put(blob[0].hex(), blob[1]))

    async def _fetched(self, place: str, references: Sequence[bytes]) -> dict[bytes, bytes]:
        held: dict[bytes, bytes] = {}

        async def fetch(reference: bytes) -> None:
            held[reference] = await self._fetch(place, reference)

        await _each(references, fetch)
        return held

    async def _fetch(self, place: str, reference: bytes) -> bytes:
        key, name = reference[:-BLOB_NAME_BYTES], reference[-BLOB_NAME_BYTES:]
        store = self._store
        if store is None:
            raise BlobsUnavailable(
                f"{place} stands in a blob store that was not given: open the store with blobs=…,"
                " and commands with --app"
            )
        stored = await store.get(name.hex())
        where = f"a blob of {place}, {store.place(name.hex())}"
        if stored is None:
            raise StorageCorrupt(f"{where}, is not there: restore it from a backup")
        if hashlib.sha256(stored).digest() != name:
            raise StorageCorrupt(f"{where}, was changed: restore it from a backup")
        return self._rows.vault.unseal_blob(key, stored)


def blob_collected() -> StorageError:
    """Return the error of a row whose blob was collected before it was written."""
    return StorageError(
        "more than an hour went by between a large value and its row, and the value was collected"
        " from the blob store: nothing was written, try again"
    )


class _Load:
    """The blobs that one write needs, by their names."""

    def __init__(self, rows: Documents, over_bytes: int) -> None:
        self._rows = rows
        self._over_bytes = over_bytes
        self.blobs: dict[bytes, bytes] = {}

    def kept(self, packed: Packed) -> Packed:
        """Return what is kept of something that is packed: all of it, or a reference."""
        packing, data = packed
        if packing & IN_BLOB or len(data) <= self._over_bytes:
            return packed
        key, stored = self._rows.vault.seal_blob(data)
        name = hashlib.sha256(stored).digest()
        self.blobs[name] = stored
        return packing | IN_BLOB, key + name


async def _each(items: Any, work: Callable[[Any], Awaitable[None]]) -> None:
    """Do something with each of some items, several at once; raises what the first one raises."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> None:
        async with places:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
