from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.runtimes.temporal.answer import refusal

_ENCODING: Final = b"binary/perdure-sealed"
_PLACE: Final = "a payload on Temporal"


class Sealing(Protocol):
    """What encrypts and decrypts bytes, each for a place."""

    def seal(self, data: bytes, place: str) -> bytes:
        """Return bytes encrypted."""
        ...

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return bytes that were encrypted; raises `KeyUnavailable` or `StorageCorrupt`."""
        ...


class Keys(Protocol):
    """What encryption is made with; `perdure.encryption.Keyring` is one."""

    def vault(self) -> Sealing:
        """Return what encrypts."""
        ...


class SealingCodec(PayloadCodec):
    """Encrypts payloads whole, with the metadata that says what they are.

    What is not encrypted is left as it is. A payload that cannot be decrypted raises an
    `ApplicationError` that nobody tries again, whose type is `KeyUnavailable` or `StorageCorrupt`
    and whose cause is that error: a workflow that meets one fails.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return payloads encrypted."""
        return [
            Payload(
                metadata={"encoding": _ENCODING},
                data=self._sealing.seal(payload.SerializeToString(), _PLACE),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return payloads as they were given."""
        return [self._unsealed(payload) for payload in payloads]

    def _unsealed(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != _ENCODING:
            return payload
        try:
            return Payload.FromString(self._sealing.unseal(payload.data, _PLACE))
        except (KeyUnavailable, StorageCorrupt) as error:
            raise refusal(error) from error


def payload_codec(keyring: Keys) -> SealingCodec:
    """Return what encrypts the payloads of a client and its workers with the keys of a keyring.

        converter = dataclasses.replace(DataConverter.default, payload_codec=payload_codec(keyring))
        client = await Client.connect(address, data_converter=converter)

    Workflow ids, which are stable keys, names and search attributes are never encrypted.
    """
    return SealingCodec(keyring.vault())
