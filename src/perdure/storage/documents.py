from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.errors import StorageCorrupt
from perdure.storage.pieces import (
    IN_BLOB,
    PLAIN,
    Beginning,
    Split,
    pack,
    pack_rest,
    unpack,
    unpack_rest,
)
from perdure.storage.vault import SEALED, OpenVault, Vault

Piece = tuple[bytes, int, bytes]
"""A piece as the database keeps it: its name, how it is packed, and its bytes."""

BLOB_NAME_BYTES: Final = 32
"""How long the name of a blob is, with which a reference ends."""

_DIGEST_BYTES: Final = 32


class Documents:
    """Translates documents and digests into what a database keeps, and back; all pass the vault.

    A document is pieces, which others share, and a rest around them that is its own. A piece is
    named by the digest of all pieces up to its end. A sealed one has that digest in front, because
    its name no longer tells it, and the rest is sealed together with the digest of its last piece,
    so that a document is what it was or is refused.

    What stands in a blob has a reference in its place: the key of the blob, which is sealed, and
    the name of it, which is not, so that the database itself can tell which blobs its rows need.
    """

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.is_open = isinstance(vault, OpenVault)

    def name(self, digest: bytes) -> bytes:
        """Return the name of the piece with which a document of this digest ends."""
        return self.vault.name(digest)

    def last(self, whole: Split) -> bytes | None:
        """Return the name of a document's last piece, or None when it has none."""
        return self.name(whole.newest[-1].digest) if whole.newest else None

    def new_piece(self, beginning: Beginning) -> Piece:
        """Return the last piece of a beginning as it is kept."""
        name = self.name(beginning.digest)
        packing, data = beginning.packed or pack(beginning.part)
        return name, packing, self.seal_piece(name, beginning.digest, packing, data)

    def seal_piece(self, name: bytes, digest: bytes, packing: int, data: bytes) -> bytes:
        """Return the bytes of a piece that is packed, as they are kept."""
        if self.is_open:
            return data
        return self._seal(digest + data, _piece_of(name, packing), packing)

    def unseal_piece(self, name: bytes, packing: int, stored: bytes) -> tuple[bytes, bytes]:
        """Return the digest that a piece stands for, and its bytes, still packed."""
        data = self._unseal(bytes(stored), _piece_of(name, packing), packing)
        if not stored.startswith(SEALED):
            return bytes(name), data
        return data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]

    def new_rest(self, place: str, whole: Split) -> tuple[int, bytes]:
        """Return how the rest of a document is packed, and its bytes as they are kept."""
        packing, rest = pack_rest(whole)
        digest = whole.newest[-1].digest if whole.newest else b""
        return packing, self.seal_rest(place, packing, digest, rest)

    def seal_rest(self, place: str, packing: int, digest: bytes, rest: bytes) -> bytes:
        """Return a rest that is packed, as it is kept; `digest` is that of the last piece."""
        if self.is_open:
            return rest
        return self._seal(rest, _rest_of(place, packing, digest), packing)

    def unseal_rest(self, place: str, packing: int, digest: bytes, stored: bytes) -> bytes:
        """Return the rest of a document, still packed; `digest` is that of the last piece."""
        return self._unseal(bytes(stored), _rest_of(place, packing, digest), packing)

    def references(
        self, place: str, pieces: Sequence[Piece], packing: int, stored: bytes
    ) -> list[bytes]:
        """Return the references to those parts of a document that stand in blobs."""
        if not packing & IN_BLOB and not any(piece[1] & IN_BLOB for piece in pieces):
            return []
        digest, found = b"", list[bytes]()
        for name, piece_packing, data in pieces:
            digest, part = self.unseal_piece(name, piece_packing, data)
            if piece_packing & IN_BLOB:
                found.append(part)
        if packing & IN_BLOB:
            found.append(self.unseal_rest(place, packing, digest, stored))
        return found

    def document(
        self,
        place: str,
        pieces: Sequence[Piece],
        packing: int,
        stored: bytes,
        blobs: Mapping[bytes, bytes] | None = None,
    ) -> bytes:
        """Return a document, put together from its pieces and its rest.

        `blobs` holds what its `references` stand for. Raises `StorageCorrupt` where something is
        not what was written, or `KeyUnavailable`.
        """
        if not pieces and packing == PLAIN and self.is_open and not stored.startswith(SEALED):
            return bytes(stored)
        digest, held = b"", b""
        if pieces:
            parts: list[bytes] = []
            for name, piece_packing, data in pieces:
                digest, part = self.unseal_piece(name, piece_packing, data)
                if piece_packing & IN_BLOB:
                    part = (blobs or {})[part]
                parts.append(unpack(piece_packing & ~IN_BLOB, part))
            held = b"".join(parts)
            if hashlib.sha256(held).digest() != digest:
                raise StorageCorrupt(
                    f"pieces of {place} were changed or moved in the database; restore it from a"
                    " backup"
                )
        rest = self.unseal_rest(place, packing, digest, stored)
        if packing & IN_BLOB:
            rest = (blobs or {})[rest]
        head, tail = unpack_rest(packing & ~IN_BLOB, rest, digest)
        return head + held + tail

    def seal_digest(self, digest: bytes, place: str) -> bytes:
        """Return the digest of something that was given, as it is kept.

        Sealed, because short values could be found out by trying.
        """
        return self.vault.seal(digest, place)

    def unseal_digest(self, stored: bytes, place: str) -> bytes:
        """Return the digest of something that was given."""
        return self.vault.unseal(bytes(stored), place)

    def _seal(self, data: bytes, place: str, packing: int) -> bytes:
        if not packing & IN_BLOB:
            return self.vault.seal(data, place)
        data, name = data[:-BLOB_NAME_BYTES], data[-BLOB_NAME_BYTES:]
        return self.vault.seal(data, f"{place}|{name.hex()}") + name

    def _unseal(self, stored: bytes, place: str, packing: int) -> bytes:
        if not packing & IN_BLOB:
            return self.vault.unseal(stored, place)
        stored, name = stored[:-BLOB_NAME_BYTES], stored[-BLOB_NAME_BYTES:]
        return self.vault.unseal(stored, f"{place}|{name.hex()}") + name


def _piece_of(name: bytes, packing: int) -> str:
    return f"the piece {name.hex()}|{packing}"


def _rest_of(place: str, packing: int, digest: bytes) -> str:
    return f"{place}|{packing}|{digest.hex()}"
