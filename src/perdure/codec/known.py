from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from perdure.codec.hints import annotations_of, classes_in
from perdure.codec.shapes import is_data
from perdure.errors import InvalidOptions

_NAME: Final = "perdure_name"


class KnownTypes:
    """The classes whose instances are stored, by the name that stands for each in what is stored.

    That is its `perdure_name`, if the class itself has one, and else its qualified name without
    the module. Where two classes of annotations have one name, neither is known by it.
    """

    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        self._kinds: dict[str, type[Any]] = {}
        self._names: dict[type[Any], str] = {}
        self._registered: set[str] = set()
        self._contested: dict[str, tuple[type[Any], type[Any]]] = {}
        self._functions = functions
        self._unread: list[type[Any]] = []
        self._reading = threading.Lock()

    def register(self, types: Sequence[type[Any] | tuple[str, type[Any]]]) -> None:
        """Register classes under their names, or under those that are given along with them.

        Raises `InvalidOptions` for what is no class of data, and for two classes with one name.
        """
        for entry in types:
            kind = entry[1] if isinstance(entry, tuple) else entry
            if not isinstance(kind, type) or not is_data(kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidOptions(
                    f"types: {kind!r} is no enum, dataclass, named tuple, msgspec.Struct or"
                    " pydantic model; whatever else it is, it cannot be rebuilt from data"
                )
            name = entry[0] if isinstance(entry, tuple) else name_of(kind)
            other = self._kinds.get(name, kind)
            if other is not kind:
                raise InvalidOptions(
                    f"types: {_in_full(other)} and {_in_full(kind)} are both called {name!r}: give"
                    f" one a name of its own, ('another', {kind.__name__}), and keep it"
                )
            self._add(name, kind)
            self._registered.add(name)

    def within(self, function: Callable[..., Any] | None) -> Lookup:
        """Return how classes are looked up for what a function takes or returns."""
        return Lookup(self, function)

    def name(self, kind: type[Any]) -> str | None:
        """Return the name of a class, or None for one that is not known."""
        return self._names.get(kind)

    def find(self, name: str) -> type[Any] | None:
        """Return the class of a name, or None for one that is not known."""
        return self._kinds.get(name)

    def rivals(self, name: str) -> str | None:
        """Name the classes that want one name, if neither has it; None where there are no two."""
        two = self._contested.get(name)
        return None if two is None else f"{_in_full(two[0])} and {_in_full(two[1])}"

    def read(self, function: Callable[..., Any] | None) -> None:
        """Learn the classes of annotations, and those in the annotations of these in turn."""
        with self._reading:  # any number of threads write what they sent
            unread = [*self._unread, *self._functions]
            self._unread.clear()
            self._functions.clear()
            if function is not None:
                unread.append(function)
            while unread:
                for kind in classes_in(annotations_of(unread.pop())):
                    if kind not in self._names and is_data(kind):
                        self._learn(kind)
                unread += self._unread
                self._unread.clear()

    def _learn(self, kind: type[Any]) -> None:
        name = name_of(kind)
        other = self._kinds.get(name)
        if other is None or _in_full(other) == _in_full(kind):
            # One that is defined anew replaces the old one, as in a notebook.
            if name not in self._contested:
                self._add(name, kind)
            return
        self._contested[name] = (other, kind)
        if name not in self._registered:
            del self._kinds[name], self._names[other]

    def _add(self, name: str, kind: type[Any]) -> None:
        self._names.pop(self._kinds.get(name, kind), None)
        self._kinds[name] = kind
        self._names[kind] = name
        self._unread.append(kind)


class Lookup(msgspec.Struct, frozen=True):
    """Finds classes among those that are known, and in the annotations of a function."""

    known: KnownTypes
    function: Callable[..., Any] | None

    def name(self, kind: type[Any]) -> str | None:
        """Return the name of a class, or None for one that is not known."""
        if self.known.name(kind) is None and is_data(kind):
            self.known.read(self.function)
        return self.known.name(kind)

    def find(self, name: str) -> type[Any] | None:
        """Return the class of a name, or None for one that is not known."""
        if self.known.find(name) is None:
            self.known.read(self.function)
        return self.known.find(name)


def name_of(kind: type[Any]) -> str:
    """Return what a class is called where nobody gave it another name."""
    name = kind.__dict__.get(_NAME)
    return name if type(name) is str else kind.__qualname__.replace(".<locals>", "")


def _in_full(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
