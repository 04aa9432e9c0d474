from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

Parts = dict[str, Any]
"""What an instance is made of: `fields` by name, and what else its kind of class has."""

_BUILTIN: Final = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float)


class Shape(msgspec.Struct, frozen=True):
    """How instances of a kind of class are taken apart, and made again without being called.

    `make` raises `ValueError` where the class has changed so that it cannot hold what is stored.
    """

    take: Callable[[Any], Parts]
    make: Callable[[type[Any], Parts], Any]


def shape_of(kind: type[Any]) -> Shape | None:
    """Return how instances of a class are stored, or None for a class that is not data."""
    if issubclass(kind, tuple):
        return _NAMED_TUPLE if hasattr(cast("Any", kind), "_fields") else None
    if issubclass(kind, msgspec.Struct):
        return _STRUCT
    if is_model(kind):
        return _MODEL
    # What one is besides its fields would be lost.
    if dataclasses.is_dataclass(kind) and not issubclass(kind, _BUILTIN):
        return _DATACLASS
    return None


def is_data(kind: type[Any]) -> bool:
    """Return whether instances of a class can be stored once it is known."""
    return issubclass(kind, enum.Enum) or shape_of(kind) is not None


def is_model(kind: type[Any]) -> bool:
    """Return whether a class is a model of pydantic."""
    fields: Any = getattr(kind, "model_fields", None)
    return hasattr(kind, "model_validate") and isinstance(fields, dict)


def _completed(
    kind: type[Any], stored: Mapping[str, Any], names: list[str], default: Callable[[str], Any]
) -> Parts:
    """Return the values of all fields of a class; one that was added since has its default."""
    gone = [name for name in stored if name not in names]
    if gone:
        raise ValueError(f"{kind.__qualname__} has no field {gone[0]!r} any more")
    return {name: stored[name] if name in stored else default(name) for name in names}


def _without_default(kind: type[Any], name: str) -> ValueError:
    return ValueError(
        f"{kind.__qualname__} was stored without the field {name!r}, which has no default"
    )


# --- dataclasses ---------------------------------------------------------------------------------


def _take_dataclass(value: Any) -> Parts:
    kind = cast("type[Any]", type(value))
    return {"fields": {field.name: getattr(value, field.name) for field in _fields(kind)}}


def _make_dataclass(kind: type[Any], parts: Parts) -> Any:
    by_name = {field.name: field for field in _fields(kind)}

    def default(name: str) -> Any:
        field = by_name[name]
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.default is dataclasses.MISSING:
            raise _without_default(kind, name)
        return field.default

    values = _completed(kind, parts["fields"], [*by_name], default)
    made = object.__new__(kind)
    _set_all(made, values)
    finish = getattr(made, "__post_init__", None)
    if finish is not None:
        try:
            inspect.signature(finish).bind()
        except TypeError:
            raise ValueError(
                f"{kind.__qualname__}.__post_init__ takes InitVars, which are not stored"
            ) from None
        finish()
        # What it has made of them once, it need not make of them twice.
        _set_all(made, values)
    return made


def _fields(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _set_all(made: Any, values: Parts) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)  # also of a frozen class


# --- structs and named tuples --------------------------------------------------------------------


def _take_struct(value: Any) -> Parts:
    return {"fields": {name: getattr(value, name) for name in value.__struct_fields__}}


def _make_struct(kind: type[Any], parts: Parts) -> Any:
    return kind(**parts["fields"])


def _take_named_tuple(value: Any) -> Parts:
    return {"fields": dict(zip(value._fields, value, strict=True))}


def _make_named_tuple(kind: Any, parts: Parts) -> Any:
    defaults: dict[str, Any] = kind._field_defaults

    def default(name: str) -> Any:
        if name not in defaults:
            raise _without_default(kind, name)
        return defaults[name]

    values = _completed(kind, parts["fields"], [*kind._fields], default)
    return cast("Any", tuple).__new__(kind, values.values())


# --- models of pydantic --------------------------------------------------------------------------


def _take_model(value: Any) -> Parts:
    state = value.__getstate__()
    names: list[str] = [*cast("Any", type(value)).model_fields]
    fields = {name: state["__dict__"][name] for name in names if name in state["__dict__"]}
    extra = state.get("__pydantic_extra__")
    private = state.get("__pydantic_private__")
    given = state["__pydantic_fields_set__"]
    parts: Parts = {"fields": fields}
    if given != {*fields, *(extra or ())}:
        parts["given"] = dict.fromkeys(sorted(given))
    if extra is not None:
        parts["extra"] = extra
    if private is not None:
        parts["private"] = private
    return parts


def _make_model(kind: Any, parts: Parts) -> Any:
    declared = kind.model_fields

    def default(name: str) -> Any:
        field = declared[name]
        if field.is_required():
            raise _without_default(kind, name)
        return field.get_default(call_default_factory=True, validated_data=parts["fields"])

    extra = parts.get("extra")
    state = {
        "__dict__": _completed(kind, parts["fields"], [*declared], default),
        "__pydantic_extra__": extra,
        "__pydantic_private__": parts.get("private"),
        "__pydantic_fields_set__": {*parts.get("given", {**parts["fields"], **(extra or {})})},
    }
    # Not validated again: it comes back as it was, whatever its validators make of their results.
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made


_DATACLASS: Final = Shape(_take_dataclass, _make_dataclass)
_STRUCT: Final = Shape(_take_struct, _make_struct)
_NAMED_TUPLE: Final = Shape(_take_named_tuple, _make_named_tuple)
_MODEL: Final = Shape(_take_model, _make_model)
