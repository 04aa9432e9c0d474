from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from perdure.effects.identity import OperationIdentity


class Landed(msgspec.Struct, frozen=True):
    """The target says that the effect was applied; `result` is what the attempt would have said."""

    result: Any = None


class NeverWill(msgspec.Struct, frozen=True):
    """The target says that the attempt was not applied and, finally, never will be."""

    why: str = ""


class NotYet(msgspec.Struct, frozen=True):
    """The target knows nothing of the attempt so far; one under way may still arrive."""


class Unknown(msgspec.Struct, frozen=True):
    """The target could not say."""

    why: str = ""


class SendAgain(msgspec.Struct, frozen=True):
    """A person lets an effect be sent again, although it may have been applied."""


Answer: TypeAlias = Landed | NeverWill | NotYet | Unknown
Lookup: TypeAlias = Callable[[OperationIdentity], Awaitable[Answer]]
Decision: TypeAlias = Landed | NeverWill | SendAgain
"""What a person may decide about an effect that is ambiguous."""
