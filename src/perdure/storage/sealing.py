from __future__ import annotations

import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final, Never

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.storage.vault import SEALED, SEALED_TEXT, Keys, shown, unsalted

CIPHERS: Final = {"aes-256-gcm": AESGCM, "chacha20-poly1305": ChaCha20Poly1305}
"""The ciphers by the names that people give them."""

_LETTERS: Final = {"aes-256-gcm": "a", "chacha20-poly1305": "c"}
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_PROOF_BYTES: Final = 16
_END: Final = b":"
_LONGEST_HEAD: Final = 80

_Cipher = AESGCM | ChaCha20Poly1305


class SealingVault:
    """Seals values with an authenticated cipher, under a key that each value names.

    A sealed value is `SEALED`, a letter for the cipher, the id of the key, a colon, a random nonce,
    and what the cipher makes of the value with its place as associated data. Of each key, others
    are derived: one for each cipher, one that names pieces and one that proves it.
    """

    def __init__(
        self, current: str, keys: Mapping[str, bytes], *, cipher: str, accept_plaintext: bool
    ) -> None:
        self._accept_plaintext = accept_plaintext
        self._ciphers: dict[bytes, _Cipher] = {
            _label(name, key_id): kind(_derived(key, name))
            for key_id, key in keys.items()
            for name, kind in CIPHERS.items()
        }
        label = _label(cipher, current)
        self._cipher = self._ciphers[label]
        self._head = SEALED + label + _END
        self._head_text = SEALED_TEXT + (label + _END).decode()
        self._naming = _derived(keys[current], "names of pieces")
        self._keys = Keys(
            current,
            {key_id: _derived(key, "proof")[:_PROOF_BYTES] for key_id, key in keys.items()},
            accept_plaintext,
            self._head,
            self._head_text,
        )

    @property
    def keys(self) -> Keys:
        """Which keys there are, and what they are for."""
        return self._keys

    def seal(self, data: bytes, place: str) -> bytes:
        """Return bytes as they are stored."""
        return self._head + self._encrypt(data, place)

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return the bytes that were sealed; raises `KeyUnavailable` or `StorageCorrupt`."""
        if stored.startswith(self._head):
            return _decrypt(self._cipher, stored[len(self._head) :], place)
        if not stored.startswith(SEALED):
            return stored if self._accept_plaintext else _refuse(place)
        label, found, body = stored[len(SEALED) :].partition(_END)
        return _decrypt(self._cipher_of(label if found else b"", place), body, place)

    def seal_text(self, text: str, place: str) -> str:
        """Return a text as it is stored."""
        return self._head_text + b64encode(self._encrypt(text.encode(), place)).decode()

    def unseal_text(self, stored: str, place: str) -> str:
        """Return the text that was sealed; raises as `unseal`."""
        if not stored.startswith(SEALED_TEXT):
            return stored if self._accept_plaintext else _refuse(place)
        label, found, body = stored[len(SEALED_TEXT) :].partition(_END.decode())
        cipher = self._cipher_of(label.encode() if found else b"", place)
        try:
            data = b64decode(body, validate=True)
        except ValueError:
            data = b""
        return _decrypt(cipher, data, place).decode()

    def name(self, digest: bytes) -> bytes:
        """Return the name under which what has this digest is stored and found again."""
        return hmac.digest(self._naming, digest, "sha256")

    def seal_blob(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a new key, and bytes sealed with it."""
        key = os.urandom(_KEY_BYTES)
        # Used once, so that the nonce may be any.
        body = type(self._cipher)(key).encrypt(bytes(_NONCE_BYTES), data, None)
        return key, self._head[len(SEALED) :][:1] + body

    def unseal_blob(self, key: bytes, stored: bytes) -> bytes:
        """Return the bytes of a blob; one without a key is from before encryption."""
        if not key:
            return unsalted(stored)
        letters = {letter.encode(): CIPHERS[name] for name, letter in _LETTERS.items()}
        try:
            cipher = letters[stored[:1]](key)
            return cipher.decrypt(bytes(_NONCE_BYTES), stored[1:], None)
        except (KeyError, InvalidTag, ValueError):
            raise StorageCorrupt(
                "a blob is not what its row says: restore both from a backup"
            ) from None

    def _encrypt(self, data: bytes, place: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, place.encode())

    def _cipher_of(self, label: bytes, place: str) -> _Cipher:
        cipher = self._ciphers.get(label)
        if cipher is not None:
            return cipher
        if not 1 < len(label) < _LONGEST_HEAD or chr(label[0]) not in _LETTERS.values():
            raise _changed(place)
        raise KeyUnavailable(
            f"{shown(place)} is encrypted with the key {label[1:].decode('utf-8', 'replace')!r},"
            " which the keyring does not have: add the key to it"
        )


def _label(cipher: str, key_id: str) -> bytes:
    return f"{_LETTERS[cipher]}{key_id}".encode()


def _derived(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose: a block of HKDF-Expand with SHA-256."""
    return hmac.digest(key, f"perdure {purpose}".encode() + b"\x01", "sha256")


def _decrypt(cipher: _Cipher, body: bytes, place: str) -> bytes:
    if len(body) < _NONCE_BYTES + _TAG_BYTES:
        raise _changed(place)
    try:
        return cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], place.encode())
    except InvalidTag:
        raise _changed(place) from None


def _changed(place: str) -> StorageCorrupt:
    return StorageCorrupt(
        f"{shown(place)} is not what was encrypted there: it was changed, cut short or moved, or"
        " the key of that id is another one here; compare the keys, then restore it from a backup"
    )


def _refuse(place: str) -> Never:
    raise StorageCorrupt(
        f"{shown(place)} is not encrypted, and in this store everything has to be: if it was"
        " written before encryption was turned on, `perdure reencrypt --plaintext` encrypts it;"
        " until then Keyring(..., accept_plaintext=True) reads it"
    )
