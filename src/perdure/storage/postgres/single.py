from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from psycopg.types.numeric import Int8

_ROWS: Final = re.compile(
    r"\bunnest\((?P<given>(?:[^()]|\(\w+\))*)\)\s+(?P<placed>WITH ORDINALITY )?"
    r"(?P<named>AS \w+ \([^()]*\))"
)
_AMONG: Final = re.compile(r"= ANY\((%\(\w+\)s::[a-z ]+)\[\]\)")
_WRAPPERS: Final = {"bigint": Int8, "double": float}


def takes_rows(sql: str) -> bool:
    """Tell whether a statement takes the columns of many rows, and tells their places."""
    return "ORDINALITY AS input (" in sql


def for_one(sql: str) -> str:
    """Return a statement of many rows as one for a single row that brings no extra values.

    It gets each column as a plain value. Around so few bytes, arrays cost as much as the rows.
    """
    # Put in wherever it is used: a CTE of its own costs more than its values.
    sql = sql.replace("input AS (", "input AS NOT MATERIALIZED (")
    return _AMONG.sub(r"= \1", _ROWS.sub(_values, sql))


def values_of(kinds: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of one row, in the types that all values of their kinds are sent as.

    The server prepares a statement once for each combination of types.
    """
    return {
        name: row[name]
        if row[name] is None or kind not in _WRAPPERS
        else _WRAPPERS[kind](row[name])
        for name, kind in kinds.items()
    }


def _values(found: re.Match[str]) -> str:
    given = found["given"].replace("[]", "")
    if found["placed"]:
        return f"(VALUES ({given}, 1::bigint)) {found['named']}"
    nothing = re.sub(r"%\(\w+\)s", "NULL", given)
    return f"(VALUES ({nothing})) {found['named']} WHERE false"
