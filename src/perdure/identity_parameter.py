from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final

import msgspec

from perdure.annotations import evaluated, meant, names_around, written
from perdure.effects.identity import OperationIdentity
from perdure.errors import InvalidFunction
from perdure.wording import named

PARAMETER: Final = "operation"
"""What the parameter for the identity is called."""

# What a text may name although its module imports it for type checkers only.
_SPELLED: Final[Mapping[str, Any]] = {
    "OperationIdentity": OperationIdentity,
    "perdure": types.SimpleNamespace(OperationIdentity=OperationIdentity),
    "typing": typing,
    **{name: getattr(typing, name) for name in ("Annotated", "Optional", "Union")},
}
_VARIADIC: Final = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


class IdentityParameter(msgspec.Struct, frozen=True):
    """Where a function takes the identity of its operation; `before` are the parameters before."""

    by_name: bool
    by_place: bool
    before: tuple[Parameter, ...]

    def put(
        self, identity: OperationIdentity, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Put the identity in: into `kwargs`, or into the positional arguments returned.

        One that the caller passes is taken instead of it. Arguments that do not fit stay as wrong
        as they are.
        """
        given = kwargs.pop(PARAMETER, None) if self.by_name else None
        # One that a model writes for itself, where a tool takes any arguments, is no identity.
        if isinstance(given, OperationIdentity):
            identity = given
        place = len(self.before)
        if self.by_place and len(args) >= place:
            return (*args[:place], identity, *args[place:])
        if self.by_name:
            kwargs[PARAMETER] = identity
            return args
        left_out = [parameter.default for parameter in self.before[len(args) :]]
        fits = all(default is not Parameter.empty for default in left_out)
        return (*args, *left_out, identity) if fits else args


def identity_parameter(function: Callable[..., Any]) -> IdentityParameter | None:
    """Return the parameter of a function that is annotated as the identity, or None.

    Raises `InvalidFunction` where that cannot be told, or nothing can be put.
    """
    parameters = [*inspect.signature(function).parameters.values()]
    found = None
    for place, parameter in enumerate(parameters):
        if not _takes_identity(function, parameter):
            continue
        kind = parameter.kind
        if parameter.name != PARAMETER or kind in _VARIADIC:
            raise InvalidFunction(
                f"{named(function)}: the parameter for the OperationIdentity is to be called"
                f" {PARAMETER!r}, not {_written(parameter)!r}"
            )
        found = IdentityParameter(
            by_name=kind is not Parameter.POSITIONAL_ONLY,
            by_place=kind is not Parameter.KEYWORD_ONLY,
            before=tuple(parameters[:place]),
        )
    return found


def check_takes_none(function: Callable[..., Any]) -> None:
    """Raise `InvalidFunction` for a function that waits for an identity that nobody passes."""
    annotations: Mapping[str, Any] = getattr(function, "__annotations__", None) or {}
    for name, annotation in annotations.items():
        likely = name == PARAMETER or OperationIdentity.__name__ in str(annotation)
        if name != "return" and likely and _mentions(_resolved(function, annotation)):
            raise InvalidFunction(
                f"{named(function)}: only @effect(...) puts an OperationIdentity in; declare the"
                f" function with it, or leave the parameter {name!r} out"
            )


def _takes_identity(function: Callable[..., Any], parameter: Parameter) -> bool:
    annotation = _resolved(function, parameter.annotation)
    if _is_identity(annotation):
        return True
    # One that nothing is known of would silently stay empty, and with it the target's key.
    unknown = isinstance(annotation, str) or annotation is Parameter.empty
    if (parameter.name == PARAMETER and unknown) or _mentions(annotation):
        raise InvalidFunction(
            f"{named(function)}: whether the parameter {_written(parameter)!r} is to get the"
            f" identity of the operation cannot be told; write {PARAMETER}: OperationIdentity, or"
            " give the parameter another type or name"
        )
    return False


def _written(parameter: Parameter) -> str:
    """Return a parameter's name with its stars."""
    stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return f"{stars.get(parameter.kind, '')}{parameter.name}"


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation as the module of its function understands it; a text if it cannot be."""
    try:
        return evaluated(annotation, {**_SPELLED, **names_around(written(function))})
    except Exception:  # noqa: BLE001 - it is the program of a user that is evaluated here
        return annotation


def _is_identity(annotation: Any) -> bool:
    annotation = meant(annotation)
    if annotation is OperationIdentity:
        return True
    members = [member for member in _members(annotation) if member is not type(None)]
    return bool(members) and all(map(_is_identity, members))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return what a union is made of; nothing for any other type."""
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    return typing.get_args(annotation) if is_union else ()


def _mentions(annotation: Any) -> bool:
    annotation = meant(annotation)
    if isinstance(annotation, type) and issubclass(annotation, OperationIdentity):
        return True
    return any(map(_mentions, typing.get_args(annotation)))
