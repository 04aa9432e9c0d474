from __future__ import annotations

import math
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from perdure.errors import InvalidPayload

U64_LIMIT: Final = (1 << 64) - 1
"""The largest number of an envelope."""

Byte: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
U64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0; `Exact` holds it below 2**64, which an annotation cannot say."""
I64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
U63: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A whole number of a history document, whose readers have signed numbers only."""


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of an envelope: it has the members that it declares, and no others.

    Raises `InvalidPayload` for a number that the wire does not carry.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, int) and value > U64_LIMIT:
                raise InvalidPayload(f"{name} is {value}, and the largest number is {U64_LIMIT}")
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidPayload(f"{name} is {value}, which JSON has no number for")


class Empty(Exact, frozen=True):
    """What stands under a tag that needs nothing else to be said: `{}`."""


class OneOf(Exact, frozen=True, omit_defaults=True):
    """One of several things, as an object of one member that is named after it.

    Raises `InvalidPayload` unless exactly one of them is given.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not UNSET]
        if len(given) != 1:
            names = ", ".join(self.__struct_fields__)
            raise InvalidPayload(
                f"{type(self).__name__} holds {len(given)} of {names}, and it holds exactly one"
            )

    @property
    def tag(self) -> str:
        """The name of what it holds."""
        return next(n for n in self.__struct_fields__ if getattr(self, n) is not UNSET)

    @property
    def value(self) -> Any:
        """What it holds."""
        return getattr(self, self.tag)
