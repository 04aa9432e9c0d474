from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any


def written(function: Callable[..., Any]) -> Any:
    """Return what holds the code of a callable, below what wraps it."""
    bare: Any = inspect.unwrap(function)
    return bare if hasattr(bare, "__code__") else inspect.unwrap(type(bare).__call__)


def names_around(bare: Any) -> dict[str, Any]:
    """Return the names that stand for something where a function is written."""
    code = getattr(bare, "__code__", None)
    closure = getattr(bare, "__closure__", None) or ()
    cells = zip(code.co_freevars if code is not None else (), closure, strict=False)
    around = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    return {**getattr(bare, "__globals__", {}), **around}


def evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """Return what an annotation stands for; raises whatever a user's program raises there."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, names)["it"]


def meant(annotation: Any) -> Any:
    """Return what a `type` statement or a `NewType` stands for."""
    for name in ("__value__", "__supertype__"):
        while not isinstance(annotation, type) and hasattr(annotation, name):
            annotation = getattr(annotation, name)
    return annotation
