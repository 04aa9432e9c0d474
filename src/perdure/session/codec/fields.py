"""Headers of the codec as values: text, booleans and JSON are all carried as strings."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.session.headers import TRUE

ABSENT: Final = object()
"""Stands for a value that is not there, where None is a value."""

Fields = dict[str, str]


def read_json(text: str) -> Any:
    """Return the value of JSON text, or `ABSENT` where it is none."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ABSENT


def texts(fields: Fields, *names: str) -> dict[str, Any]:
    """Return those of the fields that are there."""
    return {name: fields[name] for name in names if name in fields}


def booleans(fields: Fields, *names: str) -> dict[str, Any]:
    """Return those of the fields that are there; all but "true" reads as False."""
    return {name: fields[name] == TRUE for name in names if name in fields}


def documents(fields: Fields, *names: str) -> dict[str, Any]:
    """Return the values of those fields that are there and are JSON, null not being one."""
    found = {name: read_json(fields[name]) for name in names if name in fields}
    return {name: value for name, value in found.items() if value is not ABSENT}
