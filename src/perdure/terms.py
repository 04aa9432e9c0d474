from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from perdure.declaration import EffectDeclaration, Verdict
from perdure.journal.invocation import Invocation
from perdure.journal.record import Outcome
from perdure.retry import RetryPolicy


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How one operation of a worker is performed.

    `effect` is what it does to the world, None for nothing. `verdict_of` says what became of the
    effect where an outcome alone does not tell; None, or what returns None, leaves it to that.
    """

    effect: EffectDeclaration | None = None
    retry: RetryPolicy | None = None
    verdict_of: Callable[[Outcome], Verdict | None] | None = None


TermsOf: TypeAlias = Callable[[Invocation], Awaitable[Terms]]
"""Tells the terms of an operation that is not recorded yet, before its worker is called."""
