from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from perdure.errors import StorageCorrupt
from perdure.storage.pieces import PLAIN, Split, pack, pack_rest, unpack, unpack_rest
from perdure.storage.vault import SEALED, OpenVault, Vault

Piece = tuple[bytes, int, bytes]
"""A piece as the database keeps it: its name, how it is packed, and its bytes."""

_DIGEST_BYTES: Final = 32


class Documents:
    """Translates documents and digests into what a database keeps, and back; all pass the vault.

    A document is pieces, which others share, and a rest around them that is its own. A piece is
    named by the digest of all pieces up to its end. A sealed one has that digest in front, because
    its name no longer tells it, and the rest is sealed together with the digest of its last piece,
    so that a document is what it was or is refused.
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

    def new_piece(self, digest: bytes, part: bytes) -> Piece:
        """Return a piece as it is kept."""
        name = self.name(digest)
        packing, data = pack(part)
        return name, packing, self.seal_piece(name, digest, packing, data)

    def seal_piece(self, name: bytes, digest: bytes, packing: int, data: bytes) -> bytes:
        """Return the bytes of a piece that is packed, as they are kept."""
        if self.is_open:
            return data
        return self.vault.seal(digest + data, _piece_of(name, packing))

    def unseal_piece(self, name: bytes, packing: int, stored: bytes) -> tuple[bytes, bytes]:
        """Return the digest that a piece stands for, and its bytes, still packed."""
        data = self.vault.unseal(bytes(stored), _piece_of(name, packing))
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
        return self.vault.seal(rest, _rest_of(place, packing, digest))

    def unseal_rest(self, place: str, packing: int, digest: bytes, stored: bytes) -> bytes:
        """Return the rest of a document, still packed; `digest` is that of the last piece."""
        return self.vault.unseal(bytes(stored), _rest_of(place, packing, digest))

    def document(self, place: str, pieces: Sequence[Piece], packing: int, stored: bytes) -> bytes:
        """Return a document, put together from its pieces and its rest.

        Raises `StorageCorrupt` where they are not what was written, or `KeyUnavailable`.
        """
        if not pieces and packing == PLAIN and self.is_open and not stored.startswith(SEALED):
            return bytes(stored)
        digest, held = b"", b""
        if pieces:
            parts: list[bytes] = []
            for name, piece_packing, data in pieces:
                digest, part = self.unseal_piece(name, piece_packing, data)
                parts.append(unpack(piece_packing, part))
            held = b"".join(parts)
            if not self.is_open and hashlib.sha256(held).digest() != digest:
                raise StorageCorrupt(
                    f"pieces of {place} were changed or moved in the database; restore it from a"
                    " backup"
                )
        head, tail = unpack_rest(packing, self.unseal_rest(place, packing, digest, stored))
        return head + held + tail

    def seal_digest(self, digest: bytes, place: str) -> bytes:
        """Return the digest of something that was given, as it is kept.

        Sealed, because short values could be found out by trying.
        """
        return self.vault.seal(digest, place)

    def unseal_digest(self, stored: bytes, place: str) -> bytes:
        """Return the digest of something that was given."""
        return self.vault.unseal(bytes(stored), place)


def _piece_of(name: bytes, packing: int) -> str:
    return f"the piece {name.hex()}|{packing}"


def _rest_of(place: str, packing: int, digest: bytes) -> str:
    return f"{place}|{packing}|{digest.hex()}"
