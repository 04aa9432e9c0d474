from __future__ import annotations

import importlib
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import msgspec

from perdure.errors import InvalidOptions, KeyUnavailable, MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage.vault import Vault

Cipher = Literal["aes-256-gcm", "chacha20-poly1305"]

_KEY_BYTES: Final = 32
_is_key_id: Final = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a key file holds: the id of the key that encrypts, and keys in base64 by their ids."""

    current: str
    keys: Mapping[str, str]
    cipher: Cipher = "aes-256-gcm"
    accept_plaintext: bool = False


class Keyring:
    """The keys that encrypt what a store is given, and what comes of it.

        Keyring(current="2026-11", keys={"2026-11": "…", "2025": "…"})

    Keys are 32 random bytes, or their base64, by an id that is stored with each value; `current`
    names the one that encrypts, and the others are for what was encrypted before. Every process on
    a store needs all keys that any of them encrypts with. `accept_plaintext` is for the time until
    a store that was in use without encryption has been encrypted by `perdure reencrypt`.

    Raises `InvalidOptions` for keys that cannot be used, and `MissingExtra`.
    """

    def __init__(
        self,
        *,
        current: str,
        keys: Mapping[str, bytes | str],
        cipher: Cipher = "aes-256-gcm",
        accept_plaintext: bool = False,
    ) -> None:
        self.current = current
        self.cipher: Cipher = cipher
        self.accept_plaintext = accept_plaintext
        self._keys = {_checked_id(key_id): _checked(key_id, key) for key_id, key in keys.items()}
        if current not in self._keys:
            known = ", ".join(map(repr, self._keys)) or "none"
            raise InvalidOptions(f"the current key {current!r} is not among the keys: {known}")
        try:
            sealing: Any = importlib.import_module("perdure.storage.sealing")
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "encryption needs its extra: pip install 'perdure[encryption]'"
            ) from error
        if cipher not in sealing.CIPHERS:
            known = ", ".join(map(repr, sealing.CIPHERS))
            raise InvalidOptions(f"the cipher {cipher!r} is not one of {known}")
        self._sealing = sealing

    @staticmethod
    def generate_key() -> str:
        """Return a new random key, in base64."""
        return b64encode(os.urandom(_KEY_BYTES)).decode()

    @classmethod
    def read(cls, path: str | Path) -> Keyring:
        """Return the keyring of a key file, as `perdure key new` makes one.

        Raises `KeyUnavailable` for a file that cannot be read or holds no keys.
        """
        file = read_key_file(path)
        try:
            return cls(
                current=file.current,
                keys=file.keys,
                cipher=file.cipher,
                accept_plaintext=file.accept_plaintext,
            )
        except InvalidOptions as error:
            raise KeyUnavailable(f"the key file {path} cannot be used: {error}") from error

    @property
    def key_ids(self) -> list[str]:
        """The ids of all keys, sorted."""
        return sorted(self._keys)

    def accepting_plaintext(self) -> Keyring:
        """Return the same keyring for a store that is not encrypted whole yet."""
        return Keyring(
            current=self.current, keys=self._keys, cipher=self.cipher, accept_plaintext=True
        )

    def vault(self) -> Vault:
        """Return what storage encrypts and decrypts with."""
        return self._sealing.SealingVault(
            self.current, self._keys, cipher=self.cipher, accept_plaintext=self.accept_plaintext
        )

    def __repr__(self) -> str:
        """Return the ids; keys are never shown."""
        return f"Keyring(current={self.current!r}, keys={self.key_ids})"

    def __reduce__(self) -> NoReturn:
        """Refuse: a pickle would hold the keys."""
        raise TypeError("a Keyring is not pickled, because its keys would be: make another one")


def vault_of(encryption: Keyring | None) -> Vault | None:
    """Return what storage encrypts with, or None for no encryption."""
    return None if encryption is None else encryption.vault()


def read_key_file(path: str | Path) -> KeyFile:
    """Return what a key file holds; raises `KeyUnavailable`."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is a tenth of importing perdure
            return msgspec.json.decode(file.read(), type=KeyFile)
    except OSError as error:
        raise KeyUnavailable(
            f"the key file {path} cannot be read ({error.strerror or error}): `perdure key new"
            " --key-file FILE` makes one"
        ) from error
    except ValueError as error:
        raise KeyUnavailable(
            f'{path} is not a key file ({error}): one holds {{"current": ID, "keys": {{ID:'
            " BASE64}}, as `perdure key new` writes it"
        ) from error


def _checked_id(key_id: object) -> str:
    if isinstance(key_id, str) and _is_key_id(key_id):
        return key_id
    raise InvalidOptions(
        f"{key_id!r} cannot be the id of a key: it has 1 to 64 characters, each one of"
        " A-Z a-z 0-9 . _ -"
    )


def _checked(key_id: str, key: object) -> bytes:
    if isinstance(key, str):
        try:
            key = b64decode(key, validate=True)
        except ValueError:
            key = b""
    if isinstance(key, bytes) and len(key) == _KEY_BYTES:
        return key
    raise InvalidOptions(
        f"the key {key_id!r} is not {_KEY_BYTES} bytes, or the base64 of so many:"
        " Keyring.generate_key() makes one"
    )
