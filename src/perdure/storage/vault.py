from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from perdure.errors import KeyUnavailable, StorageCorrupt

SEALED: Final = b"\x00sealed\x00"
"""How every sealed value begins, and no JSON document, packed or not."""

SEALED_TEXT: Final = "\x01sealed\x01"
"""How every sealed text begins."""

_SALT_BYTES: Final = 16

UNREADABLE: Final = (KeyUnavailable, StorageCorrupt)
"""What reading a value raises that is not what was written, or for want of its key."""


class Keys(msgspec.Struct, frozen=True):
    """The keys that a vault has, and what it does with values that none has sealed.

    `current` is the id of the one that seals, and `proofs` tells of each, by its id, whether it is
    the same key as elsewhere. What is sealed now begins with `head`, texts with `head_text`.
    """

    current: str | None = None
    proofs: Mapping[str, bytes] = {}
    accepts_plaintext: bool = True
    head: bytes = b""
    head_text: str = ""


class Vault(Protocol):
    """The port through which storage hides what users gave it.

    `place` names the row and the column that a value stands in; a value that was moved elsewhere is
    refused. What follows a bar in it are facts of the row that go with the value, and that messages
    leave out. Sealed values begin with `SEALED`, sealed texts with `SEALED_TEXT`.
    """

    @property
    def keys(self) -> Keys:
        """Which keys there are, and what they are for."""
        ...

    def seal(self, data: bytes, place: str) -> bytes:
        """Return bytes as they are stored."""
        ...

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return the bytes that were sealed.

        Raises `KeyUnavailable` when the key is not there, and `StorageCorrupt` for a value that was
        changed, cut short or moved, or that is not sealed although it has to be.
        """
        ...

    def seal_text(self, text: str, place: str) -> str:
        """Return a text as it is stored."""
        ...

    def unseal_text(self, stored: str, place: str) -> str:
        """Return the text that was sealed; raises as `unseal`."""
        ...

    def name(self, digest: bytes) -> bytes:
        """Return the name under which what has this digest is stored and found again."""
        ...

    def seal_blob(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a new key, and bytes sealed with it, which are like no others.

        The key stands sealed in the row that needs the blob, and goes with it.
        """
        ...

    def unseal_blob(self, key: bytes, stored: bytes) -> bytes:
        """Return the bytes of a blob; raises `StorageCorrupt` for what was not sealed so."""
        ...


class OpenVault:
    """Keeps values as they are, and reads no sealed ones."""

    @property
    def keys(self) -> Keys:
        """None."""
        return Keys()

    def seal(self, data: bytes, place: str) -> bytes:
        """Return the bytes themselves."""
        del place
        return data

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return the bytes themselves; raises `KeyUnavailable` for sealed ones."""
        if stored.startswith(SEALED):
            raise _locked(place)
        return stored

    def seal_text(self, text: str, place: str) -> str:
        """Return the text itself, but for what would make it look sealed."""
        del place
        return text.removeprefix(SEALED_TEXT[0]) if text.startswith(SEALED_TEXT) else text

    def unseal_text(self, stored: str, place: str) -> str:
        """Return the text itself; raises `KeyUnavailable` for a sealed one."""
        if stored.startswith(SEALED_TEXT):
            raise _locked(place)
        return stored

    def name(self, digest: bytes) -> bytes:
        """Return the digest itself."""
        return digest

    def seal_blob(self, data: bytes) -> tuple[bytes, bytes]:
        """Return no key, and the bytes behind some that make them like no others."""
        return b"", salted(data)

    def unseal_blob(self, key: bytes, stored: bytes) -> bytes:
        """Return the bytes themselves."""
        del key
        return unsalted(stored)


def salted(data: bytes) -> bytes:
    """Return bytes behind random ones."""
    return os.urandom(_SALT_BYTES) + data


def unsalted(stored: bytes) -> bytes:
    """Return what `salted` was given."""
    return stored[_SALT_BYTES:]


def shown(place: str) -> str:
    """Return what messages say of a place."""
    return place.partition("|")[0]


def lacking(vault: Vault, noted: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the ids of those of the keys that a store was written with that a vault has not."""
    return [key_id for key_id, _ in noted if key_id not in vault.keys.proofs]


def admit(vault: Vault, noted: Sequence[tuple[str, bytes]], *, used: bool) -> None:
    """Check that a store can be opened with what was given.

    `noted` are the ids and proofs of the keys that it was written with, and `used` tells whether
    anything was. Raises `KeyUnavailable`, or `StorageCorrupt` for a store in plaintext that is to
    be read as an encrypted one.
    """
    keys = vault.keys
    missing = ", ".join(map(repr, lacking(vault, noted)))
    if missing:
        if keys.current is None:
            raise KeyUnavailable(
                f"the store is encrypted (with {missing}): open it with encryption=Keyring(...),"
                " and commands with --key-file"
            )
        raise KeyUnavailable(
            f"the store holds what is encrypted with {missing}, which the keyring does not have:"
            " add the key to it"
        )
    for key_id, proof in noted:
        if bytes(proof) != keys.proofs[key_id]:
            raise KeyUnavailable(
                f"the key {key_id!r} of the keyring is not the one that the store was encrypted"
                " with: look for the right one, and give another key another id"
            )
    if used and not noted and not keys.accepts_plaintext:
        raise StorageCorrupt(
            "the store is not encrypted yet: `perdure reencrypt --plaintext` encrypts what it"
            " holds, and until that is done Keyring(..., accept_plaintext=True) opens it"
        )


def _locked(place: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"{shown(place)} is encrypted: open the store with encryption=Keyring(...) and the keys"
        " that it was written with"
    )
