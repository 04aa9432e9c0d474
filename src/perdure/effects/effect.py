from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from perdure.effects.answer import Lookup
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Receipt
from perdure.effects.store import Settlement
from perdure.effects.support import EffectPolicy

MOST_SENT: Final = 5
"""How often a caller sends what has no answer, when nobody said otherwise."""

Send: TypeAlias = Callable[[OperationIdentity], Awaitable[bytes]]
"""Applies the effect once and returns what the target said, one JSON document."""

Settle: TypeAlias = Callable[[Settlement], Awaitable[tuple[Receipt, bool]]]
"""Writes a move of the receipt, and what goes with it; returns as `Receipts.settle_effect`."""

Overdue: TypeAlias = Callable[[], Awaitable[bytes | None]]
"""Waits for the end of a send that was told to stop; returns what it said after all, or None."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that is asked for: what it is, how it is sent, and how doubt is settled.

    `settle` writes each move of its receipt that this caller makes; None for the receipt alone.
    `most_sent` is how often this caller sends what has no answer, before it gives up. `overdue` is
    for a send that does not stop when it is told to; None where each one does.
    """

    identity: OperationIdentity
    arguments_sha256: bytes
    policy: EffectPolicy
    send: Send
    lookup: Lookup | None = None
    settle: Settle | None = None
    most_sent: int = MOST_SENT
    handler_id: str | None = None
    overdue: Overdue | None = None
