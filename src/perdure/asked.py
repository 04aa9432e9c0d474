from __future__ import annotations

import hashlib

import msgspec

from perdure.activity import Place
from perdure.journal.invocation import Invocation


class Asked(msgspec.Struct, frozen=True, gc=False):
    """An operation as it was asked for, and the operations that it is below of."""

    invocation: Invocation
    digest: bytes
    above: tuple[Place, ...]
    cuts: tuple[int, ...] = ()
    beginnings: tuple[bytes, ...] = ()

    @property
    def place(self) -> Place:
        """Where it stands in the run."""
        return self.invocation.step_id, self.invocation.sequence

    @property
    def below(self) -> tuple[Place, ...]:
        """What is above an operation that is asked for below this one."""
        return (*self.above, self.place)


def digest_of(invocation: Invocation) -> bytes:
    """Return the digest of an input that is taken as one piece."""
    return hashlib.sha256(invocation.input_json).digest()
