from __future__ import annotations

from typing import Final, Protocol

from perdure.errors import KeyUnavailable

SEALED: Final = b"\x00sealed\x00"
"""How every sealed value begins, and no JSON document, packed or not."""

SEALED_TEXT: Final = "\x01sealed\x01"
"""How every sealed text begins."""


class Vault(Protocol):
    """The port through which storage hides what users gave it.

    `place` names the row and the column that a value stands in; a value that was moved elsewhere is
    refused. Sealed values begin with `SEALED`, sealed texts with `SEALED_TEXT`.
    """

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


class OpenVault:
    """Keeps values as they are, and reads no sealed ones."""

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
        """Return the text itself."""
        del place
        return text

    def unseal_text(self, stored: str, place: str) -> str:
        """Return the text itself; raises `KeyUnavailable` for a sealed one."""
        if stored.startswith(SEALED_TEXT):
            raise _locked(place)
        return stored


def _locked(place: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"{place} is encrypted: open the store with encryption=Keyring(...) and the keys that it"
        " was written with"
    )
