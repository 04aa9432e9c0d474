from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import pathlib
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from perdure.annotations import evaluated, meant, names_around, written
from perdure.codec.hints import classes_in
from perdure.codec.shapes import is_data, is_model
from perdure.engine.registry import NOTHING, RunFunction
from perdure.errors import InvalidPayload

_JSON: Final[frozenset[Any]] = frozenset(
    {
        *(str, int, float, bool, list, dict, object, Any, type(None), types.UnionType),
        *(getattr(collections.abc, name) for name in ("Sequence", "Mapping", "Collection")),
        *(getattr(collections.abc, name) for name in ("MutableSequence", "MutableMapping")),
    }
)
"""What annotations of plain JSON are made of."""

_DESCRIBED: Final = 3
_NAMED: Final = 12
_SHOWN_CHARACTERS: Final = 200


class Unfit(Exception):
    """Says why a value is not what an annotation asks for, to follow what it was meant to be."""


def given(registered: RunFunction, value: Any) -> Any:
    """Return the JSON value that a run function is given as what it takes, or raise as below.

    NOTHING stands for what was not typed, and stays that where nothing is needed.
    """
    if value is NOTHING:
        if registered.takes_input and registered.default is NOTHING:
            raise InvalidPayload(f"{registered.name} takes an input: type it as JSON, such as null")
        return value
    if not registered.takes_input:
        return value
    function = registered.function
    name = [*inspect.signature(function).parameters][1]
    return from_json(value, annotation_of(function, name), f"{registered.name} takes")


def answered(function: Callable[..., Any] | None, handler_id: str, value: Any) -> Any:
    """Return a JSON value as what a function returns, where that is known, or raise as below."""
    if function is None:
        return value
    try:
        annotation = annotation_of(function, "return")
    except InvalidPayload:
        return value  # a person has to be able to say what happened, whatever the code says
    return from_json(value, annotation, f"{handler_id} returns")


def from_json(value: Any, annotation: Any, whose: str) -> Any:
    """Return a JSON value as what an annotation stands for: the instances of its classes.

    Where it names none, that is the value itself. `whose` begins the message, as in "refund
    takes". Raises `InvalidPayload` for what the annotation does not allow.
    """
    kinds = {kind for kind in classes_in([annotation]) if not typing.is_typeddict(kind)}
    plain = kinds <= _JSON
    try:
        made = _made(value, annotation)
    except (Unfit, msgspec.ValidationError) as error:
        why = _shortened(str(error))
    except (TypeError, NameError, RecursionError) as error:
        # What is no type of data says nothing of JSON; a class that is none has to come from code.
        if plain:
            return value
        why = f"nothing can make one of JSON ({_shortened(str(error))}): do it from a program"
    else:
        extra = None if plain else _ignored(value, made, "$")
        if extra is None:
            return value if plain else made
        why = f"nothing is made of {extra}"
    raise InvalidPayload(f"{whose} {_described(annotation, kinds)}, and this is none: {why}")


def annotation_of(function: Callable[..., Any], name: str) -> Any:
    """Return what the annotation of a parameter, or `return`, stands for; Any without one.

    Raises `InvalidPayload` for one that means nothing at run time.
    """
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    bare = written(function)
    said = getattr(bare, "__annotations__", {}).get(name, Any)
    try:
        found = meant(evaluated(said, names_around(bare)))
    except Exception as error:  # it is a user's program, and may raise anything here
        called = getattr(function, "__name__", "the function")
        raise InvalidPayload(
            f"nobody can tell what {called} means by {said!r} ({type(error).__name__}): import it"
            " where the program runs, not for type checkers alone, or do this from a program"
        ) from error
    if typing.get_origin(found) in {Awaitable, Coroutine}:
        found = typing.get_args(found)[-1]
    return found


def _made(value: Any, annotation: Any) -> Any:
    try:
        return msgspec.convert(value, annotation, str_keys=True, dec_hook=_custom)
    except msgspec.ValidationError:
        raise
    except TypeError:
        members = typing.get_args(annotation) if _is_union(annotation) else ()
        if not members:
            raise
    fitting = list[Any]()
    for member in members:
        try:
            made = _made(value, member)
        except (Unfit, msgspec.ValidationError):
            continue
        if _ignored(value, made, "$") is None:
            fitting.append(made)
    if len(fitting) == 1:
        return fitting[0]
    raise Unfit(f"it fits {len(fitting) or 'none'} of them")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in {typing.Union, types.UnionType}


def _custom(kind: Any, value: Any) -> Any:
    """Make an instance of a class that msgspec does not know."""
    if is_model(kind):
        try:
            return kind.model_validate_json(msgspec.json.encode(value))
        except ValueError as error:
            raise ValueError(_of_model(error)) from error
    if isinstance(value, str) and issubclass(kind, pathlib.PurePath):
        return kind(value)
    if kind is not object:
        raise TypeError(f"{kind.__qualname__} is no class of data, and has to come from a program")
    return value


def _of_model(error: Any) -> str:
    """Return the first complaint of pydantic as one line."""
    first: Mapping[str, Any] = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _ignored(given: Any, made: Any, path: str) -> str | None:
    """Return the path of a member that was given and that nothing was made of, or None."""
    parts: Iterator[tuple[str, Any, Any]] = iter(())
    if isinstance(given, list) and isinstance(made, list | tuple):
        pairs = zip(cast("list[Any]", given), cast("list[Any]", made), strict=False)
        parts = ((f"{path}[{number}]", *pair) for number, pair in enumerate(pairs))
    elif isinstance(given, dict):
        asked, members = cast("dict[str, Any]", given), _members(made)
        if members is None:
            return None
        lacking = [name for name in asked if name not in members]
        if lacking:
            return f"{path}.{lacking[0]}"
        parts = ((f"{path}.{name}", asked[name], members[name]) for name in asked)
    return next((found for at, one, two in parts if (found := _ignored(one, two, at))), None)


def _members(made: Any) -> Mapping[str, Any] | None:
    """Return what an object was made of by the names that JSON has for it, or None."""
    if isinstance(made, msgspec.Struct):
        names = zip(made.__struct_encode_fields__, made.__struct_fields__, strict=True)
        tag = made.__struct_config__.tag_field
        return {name: getattr(made, own) for name, own in names} | ({tag: None} if tag else {})
    if dataclasses.is_dataclass(made):
        return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    if isinstance(made, dict):
        held = cast("dict[Any, Any]", made)
        return held if all(isinstance(key, str) for key in held) else None
    return None


# --- for people ----------------------------------------------------------------------------------


def _described(annotation: Any, kinds: set[type[Any]]) -> str:
    text = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    data = sorted((kind for kind in kinds if is_data(kind)), key=lambda kind: kind.__qualname__)
    told = [f"{kind.__qualname__}: {', '.join(_parts(kind))}" for kind in data[:_DESCRIBED]]
    return f"{text} ({'; '.join(told)})" if told else str(text)


def _parts(kind: Any) -> Iterator[str]:
    """Yield the values of an enum, or the names of the fields of another class of data."""
    if issubclass(kind, enum.Enum):
        names = [repr(member.value) for member in kind]
    elif is_model(kind):
        names = [*kind.model_fields]
    elif issubclass(kind, tuple):
        names = [*cast("Any", kind)._fields]
    else:
        names = [field.name for field in _fields(kind)]
    yield from names[:_NAMED]
    if len(names) > _NAMED:
        yield "…"


def _fields(kind: Any) -> Any:
    return (
        msgspec.structs.fields(kind)
        if hasattr(kind, "__struct_fields__")
        else (dataclasses.fields(kind))
    )


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
