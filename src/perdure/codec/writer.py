from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from perdure.canonical import Place, a_named, path_of, step_of
from perdure.codec.besides import Beside, besides
from perdure.codec.credentials import ADVICE, is_credential, is_secret
from perdure.codec.known import Lookup, name_of
from perdure.codec.mark import MARK
from perdure.codec.scalars import JSON_WRITERS, WRITERS, Unstorable
from perdure.codec.shapes import is_data, shape_of
from perdure.errors import InvalidPayload

encode_tree: Final = msgspec.json.Encoder(order="deterministic").encode

_decode: Final = msgspec.json.Decoder[Any]().decode
_SAFE_INT: Final = 1 << 63

_TAGS: Final[Mapping[type[Any], str]] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    OrderedDict: "ordered_dict",
    Counter: "counter",
}
_UNORDERED: Final = {set, frozenset, Counter}


class Writer:
    """Makes of a value a tree of what JSON carries; `write` raises `InvalidPayload`.

    `besides` are the attributes that came along and are in no tree.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.besides: list[Beside] = []
        self._lookup = lookup
        self._around: set[int] = set()

    def write(self, value: Any, place: Place) -> Any:
        """Return the tree of a value that stands at a place."""
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool:
            return value
        if kind in JSON_WRITERS:
            return value if _is_json(value) else self._scalar(*JSON_WRITERS[kind], value, place)
        if kind in WRITERS:
            return self._scalar(*WRITERS[kind], value, place)
        if is_secret(value):
            raise InvalidPayload(f"{path_of(place)} is {a_named(value)}, and {ADVICE}")
        if isinstance(value, enum.Enum):
            return self._member(value, place)
        if id(value) in self._around:
            raise InvalidPayload(f"{path_of(place)} contains itself, which cannot be stored")
        self._around.add(id(value))
        tree = self._container(value, place)
        self._around.discard(id(value))
        return tree

    def _scalar(
        self, tag: str, members: Callable[[Any], Any], value: Any, place: Place
    ) -> dict[str, Any]:
        try:
            written = members(value)
        except Unstorable as error:
            raise InvalidPayload(f"{path_of(place)} {error}") from None
        return {MARK: tag, **{name: self.write(member, place) for name, member in written.items()}}

    def _container(self, value: Any, place: Place) -> Any:
        kind = cast("type[Any]", type(value))
        if kind is list:
            return self._items(value, place)
        if kind is dict:
            return self._dict(value, place)
        if kind not in _TAGS:
            return self._object(value, place)
        items = self._pairs(value, place) if issubclass(kind, dict) else self._items(value, place)
        if kind in _UNORDERED:
            # Equal ones may have any order, and are to have the same bytes.
            items.sort(key=encode_tree)
        return self._noted(value, {MARK: _TAGS[kind], "items": items}, (), place)

    def _items(self, items: Iterable[Any], place: Place) -> list[Any]:
        return [self.write(item, (place, f"[{index}]")) for index, item in enumerate(items)]

    def _dict(self, members: dict[Any, Any], place: Place) -> dict[str, Any]:
        if MARK in members or not all(type(key) is str and _is_json(key) for key in members):
            return {MARK: "dict", "items": sorted(self._pairs(members, place), key=encode_tree)}
        return {key: self._value(key, value, place) for key, value in members.items()}

    def _pairs(self, members: dict[Any, Any], place: Place) -> list[Any]:
        return [
            [self.write(key, (place, f"{_step(key)} (the key)")), self._value(key, value, place)]
            for key, value in members.items()
        ]

    def _value(self, key: Any, value: Any, place: Place) -> Any:
        there = (place, _step(key))
        if is_credential(key, value, place[1]):
            raise InvalidPayload(f"{path_of(there)} carries a credential, and {ADVICE}")
        return self.write(value, there)

    def _member(self, value: enum.Enum, place: Place) -> dict[str, Any]:
        kind = cast("type[Any]", type(value))
        name = self._name(value, place)
        if isinstance(value, enum.Flag):
            return {MARK: "flag", "type": name, "value": self.write(value.value, place)}
        if kind.__members__.get(value.name) is not value:
            raise InvalidPayload(
                f"{path_of(place)} is {value!r}, and {kind.__qualname__} declares no such member"
            )
        return {MARK: "enum", "type": name, "member": self.write(value.name, place)}

    def _object(self, value: Any, place: Place) -> dict[str, Any]:
        name = self._name(value, place)
        shape = shape_of(cast("type[Any]", type(value)))
        assert shape is not None  # it has a name
        try:
            parts = shape.take(value)
        except AttributeError as error:
            raise InvalidPayload(f"{path_of(place)} is incomplete: {error}") from None
        trees = {part: self._dict(members, place) for part, members in parts.items()}
        tree = {MARK: "object", "type": name, **trees}
        return self._noted(value, tree, parts["fields"], place)

    def _noted(
        self, value: Any, tree: dict[str, Any], fields: Collection[str], place: Place
    ) -> dict[str, Any]:
        kind = cast("type[Any]", type(value))
        for name, item in besides(value, fields).items():
            self.besides.append(Beside(tree, place, kind, name, item))
        return tree

    def _name(self, value: Any, place: Place) -> str:
        """Return the name of a value's class, or refuse the value."""
        kind = cast("type[Any]", type(value))
        name = self._lookup.name(kind)
        if name is not None:
            return name
        refused = f"{path_of(place)} is {a_named(value)}"
        if not is_data(kind):
            raise InvalidPayload(f"{refused}, which cannot be stored: {_advice(kind)}")
        rivals = self._lookup.known.rivals(name_of(kind))
        if rivals is not None:
            raise InvalidPayload(
                f"{refused}, and {rivals} have one name: give this one another, with"
                f" App(url, types=[('another', {kind.__name__})]), and keep it"
            )
        raise InvalidPayload(
            f"{refused}, which would not come back: make the class known with"
            f" App(url, types=[{kind.__name__}]), or name it in an annotation of the function"
        )


def _is_json(value: Any) -> bool:
    """Tell whether JSON gives back a str, int or float."""
    if type(value) is int and -_SAFE_INT < value < _SAFE_INT:
        return True
    try:
        return _decode(encode_tree(value)) == value
    except ValueError:
        return False


def _step(key: Any) -> str:
    try:
        step = step_of(key)
    except Exception:  # noqa: BLE001 - an int of many digits, or a class that cannot say what it is
        step = f"[{a_named(key)}]"
    return step if len(step) <= 80 else f"{step[:79]}…]"


def _advice(kind: type[Any]) -> str:
    if issubclass(kind, dict):
        return "pass dict(value), which holds the same"
    return "convert it to a value of a known type, or to an enum, dataclass or model"
