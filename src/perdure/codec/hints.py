from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from perdure.annotations import evaluated, meant, names_around, written
from perdure.codec.shapes import is_model


def classes_in(annotations: list[Any]) -> Iterator[type[Any]]:
    """Yield the classes that annotations are made of, through unions, containers and aliases."""
    todo = list(annotations)
    seen: dict[int, Any] = {}  # kept, so that no other object gets the id
    while todo:
        annotation = meant(todo.pop())
        if id(annotation) in seen:
            continue
        seen[id(annotation)] = annotation
        origin = typing.get_origin(annotation)
        if origin is typing.Literal:
            todo += [type(value) for value in typing.get_args(annotation)]
            continue
        todo += [each for each in _parts(annotation) if each is not None]
        if isinstance(annotation, type) and origin is None:
            yield cast("type[Any]", annotation)


def annotations_of(thing: Callable[..., Any] | type[Any]) -> list[Any]:
    """Return what the annotations of a function, or of a class's fields, stand for.

    Texts that mean nothing at run time are left out.
    """
    if not isinstance(thing, type):
        return _annotations_of_function(thing)
    if is_model(thing):
        return [field.annotation for field in cast("Any", thing).model_fields.values()]
    found: list[Any] = []
    for base in thing.__mro__:
        module = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        names = {**module, base.__name__: base}
        found += _resolved(inspect.get_annotations(base), names)
    return found


def _annotations_of_function(function: Callable[..., Any]) -> list[Any]:
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    bare = written(function)
    return _resolved(getattr(bare, "__annotations__", {}), names_around(bare))


def _resolved(annotations: Mapping[str, Any], names: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for annotation in annotations.values():
        with suppress(Exception):  # it is a user's program, and may mean nothing here
            found.append(evaluated(annotation, names))
    return found


def _parts(annotation: Any) -> list[Any]:
    """Return what an annotation is made of, such as the members of a union."""
    if isinstance(annotation, typing.TypeVar):
        return [annotation.__bound__, *annotation.__constraints__]
    if isinstance(annotation, list):  # the parameters of a Callable
        return cast("list[Any]", annotation)
    if typing.is_typeddict(annotation):
        return annotations_of(annotation)
    return [typing.get_origin(annotation), *typing.get_args(annotation)]
