from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec

from perdure.canonical import encode
from perdure.effects.answer import Lookup
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Receipt
from perdure.effects.store import Settlement
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import InvalidFunction

MOST_SENT: Final = 5
"""How often a caller sends what has no answer, when nobody said otherwise.

Of what can be asked about, a run sends no more in all, whoever goes on with it.
"""

NO_LOOKUP: Final = (
    "its support is outcome_queryable, and there is no lookup to ask what became of it: write"
    " `async def find(operation: OperationIdentity) -> Answer` and"
)
"""What is said of an effect that has nobody to ask; how to register who asks is to follow."""

Send: TypeAlias = Callable[[OperationIdentity], Awaitable[bytes]]
"""Applies the effect once and returns what the target said, one JSON document."""

Settle: TypeAlias = Callable[[Settlement], Awaitable[tuple[Receipt, bool]]]
"""Writes a move of the receipt, and what goes with it; returns as `Receipts.settle_effect`."""

Overdue: TypeAlias = Callable[[], Awaitable[bytes | None]]
"""Waits for the end of a send that was told to stop; returns what it said after all, or None."""

Encode: TypeAlias = Callable[[Any], bytes]
"""Returns what a target said as a JSON document; raises `InvalidPayload`."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that is asked for: what it is, how it is sent, and how doubt is settled.

    `settle` writes each move of its receipt that this caller makes; None for the receipt alone.
    `most_sent` is how often this caller sends what has no answer, before it gives up;
    `most_attempts` is how many attempts there are in all, whoever made them, unless a person lets
    it be sent again; None for any number. `overdue` is for a send that does not stop when it is
    told to; None where each one does.
    `encode` writes what a lookup says that the attempt would have returned.

    Raises `InvalidFunction` where the target is to be asked and nobody asks it.
    """

    identity: OperationIdentity
    arguments_sha256: bytes
    policy: EffectPolicy
    send: Send
    lookup: Lookup | None = None
    settle: Settle | None = None
    most_sent: int = MOST_SENT
    most_attempts: int | None = None
    handler_id: str | None = None
    overdue: Overdue | None = None
    encode: Encode = encode

    def __post_init__(self) -> None:
        if self.lookup is None and self.policy.support is SideEffectSupport.OUTCOME_QUERYABLE:
            what = self.handler_id or self.identity.idempotency_key
            raise InvalidFunction(f"{what}: {NO_LOOKUP} pass it on as lookup=find")

    def is_spent(self, receipt: Receipt) -> bool:
        """Return whether there were as many attempts as there may be without a person's word."""
        return self.most_attempts is not None and receipt.attempt >= self.most_attempts
