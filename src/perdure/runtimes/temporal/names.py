from __future__ import annotations

from typing import Final

import msgspec


class Names(msgspec.Struct, frozen=True):
    """What an operation's workflow and its activity are called; the two go together."""

    workflow: str
    activity: str


PERDURE: Final = Names("perdure.operation.v1", "perdure.execute.v1")
"""The names that this library starts operations under."""

ZIGAI: Final = Names("zigai.operation.v1", "zigai.execute.v1")
"""The names that other programs start the same operations under; every worker serves both."""
