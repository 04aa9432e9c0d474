from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from perdure.canonical import Place, path_of, step_of
from perdure.codec.known import Lookup
from perdure.codec.mark import MARK
from perdure.codec.scalars import READERS
from perdure.codec.shapes import shape_of
from perdure.errors import InvalidPayload


def _counter(pairs: list[Any]) -> Counter[Any]:
    return Counter(dict(pairs))


_CONTAINERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "ordered_dict": OrderedDict,
    "counter": _counter,
}


class Reader:
    """Makes of a tree the value that was written as it; `read` raises `InvalidPayload`."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def read(self, tree: Any, place: Place) -> Any:
        """Return the value of a tree that stands at a place."""
        if type(tree) is dict:
            members = cast("dict[str, Any]", tree)
            if MARK in members:
                return self._marked(members, place)
            return {key: self.read(item, (place, step_of(key))) for key, item in members.items()}
        if type(tree) is list:
            items = cast("list[Any]", tree)
            return [self.read(item, (place, f"[{index}]")) for index, item in enumerate(items)]
        return tree

    def _marked(self, tree: dict[str, Any], place: Place) -> Any:
        members = dict(tree)
        tag = members.pop(MARK)
        what = f"{tag} {tree.get('type', '')}".strip()
        try:
            return self._made(tag, members, place)
        except (InvalidPayload, RecursionError):
            raise
        except Exception as error:  # whatever the class of a user raises
            raise InvalidPayload(
                f"{path_of(place)} holds a value of the kind {what!r} that cannot be rebuilt:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _made(self, tag: Any, members: dict[str, Any], place: Place) -> Any:
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self.read(members["items"], place))
        if tag in {"enum", "flag", "object"}:
            return self._of_class(tag, members, place)
        if tag in READERS:
            return READERS[tag]({name: self.read(it, place) for name, it in members.items()})
        raise InvalidPayload(
            f"{path_of(place)} holds a value of the kind {tag!r}, which this release does not know:"
            " upgrade perdure where it is read"
        )

    def _of_class(self, tag: str, members: dict[str, Any], place: Place) -> Any:
        name = members.pop("type")
        kind = self._lookup.find(name)
        if kind is None:
            raise self._unknown(name, place)
        is_enum = issubclass(kind, enum.Enum)
        if is_enum and tag == "enum":
            return kind[self.read(members["member"], place)]
        if is_enum and tag == "flag":
            return kind(self.read(members["value"], place))
        shape = shape_of(kind)
        if is_enum or shape is None or tag != "object":
            raise ValueError(f"{kind.__qualname__} is another kind of class now")
        parts = {part: self._part(tree, place) for part, tree in members.items()}
        return shape.make(kind, parts)

    def _part(self, tree: Any, place: Place) -> dict[str, Any]:
        part = self.read(tree, place)
        if type(part) is not dict:
            raise TypeError("its members are no object")
        return cast("dict[str, Any]", part)

    def _unknown(self, name: str, place: Place) -> InvalidPayload:
        rivals = self._lookup.known.rivals(name)
        if rivals is not None:
            return InvalidPayload(
                f"{path_of(place)} is a {name}, and {rivals} are both called so: register the one"
                " that was stored, App(url, types=[…])"
            )
        return InvalidPayload(
            f"{path_of(place)} is a {name}, and no class of that name is known here: register it,"
            f" App(url, types=[{name}]); one that was renamed is registered under its old name too,"
            f" types=[('{name}', …), …]"
        )
