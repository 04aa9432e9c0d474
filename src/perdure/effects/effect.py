from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from perdure.effects.answer import Lookup
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy

Send: TypeAlias = Callable[[OperationIdentity], Awaitable[bytes]]
"""Applies the effect once and returns what the target said, one JSON document."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that is asked for: what it is, how it is sent, and how doubt is settled."""

    identity: OperationIdentity
    arguments_sha256: bytes
    policy: EffectPolicy
    send: Send
    lookup: Lookup | None = None
