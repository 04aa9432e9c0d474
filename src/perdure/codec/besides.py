from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, Final, cast

import msgspec

from perdure.canonical import Place

_OF_TYPING: Final = "__orig_class__"
"""What typing leaves on an instance that was made through an alias, such as `Box[int](1)`."""

_OF_PYDANTIC: Final = "__pydantic_"


class Beside(msgspec.Struct, frozen=True):
    """An attribute that an instance has beside its fields, and so beside what is stored of it.

    `tree` is what is stored of the instance, which stands at `place`.
    """

    tree: Any
    place: Place
    owner: type[Any]
    name: str
    value: Any


def besides(value: Any, fields: Collection[str]) -> dict[str, Any]:
    """Return the attributes of an instance that are no fields of it, by name.

    Left out is what its class works out again from its fields when it is asked for.
    """
    state: Any = object.__getstate__(value)
    parts = cast("tuple[Any, ...]", state if isinstance(state, tuple) else (state,))
    return {
        name: item
        for part in parts
        for name, item in cast("dict[str, Any]", part or {}).items()
        if name not in fields and not _made_by_class(cast("type[Any]", type(value)), name)
    }


def _made_by_class(kind: type[Any], name: str) -> bool:
    if name == _OF_TYPING or name.startswith(_OF_PYDANTIC):
        return True
    return isinstance(getattr(kind, name, None), functools.cached_property)
