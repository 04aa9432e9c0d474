from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def text_of(error: BaseException) -> str:
    """Return what an exception says, as Unicode text that can be stored; it never raises."""
    try:
        return printable(str(error))
    # An error that cannot say what it is, is still one, whatever it raises instead.
    except (Exception, SystemExit, GeneratorExit) as broken:  # noqa: BLE001
        return f"it has no message: its __str__ raises {type(broken).__name__}"


def printable(text: str) -> str:
    """Return a text with its lone surrogates and NULs spelled out: not every store takes them."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def named(function: Callable[..., Any]) -> str:
    """Return what people call a function: its name, and the file and line where it is written."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{name.replace('.<locals>', '')}{place}"
