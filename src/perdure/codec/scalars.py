from __future__ import annotations

import base64
import pathlib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from msgspec import UNSET, UnsetType

Members: TypeAlias = Mapping[str, Any]
"""What a value without other values in it is written as, next to its tag."""


_SEASONS: Final = (datetime(2026, 1, 1), datetime(2026, 7, 1))


class Unstorable(Exception):
    """Says why a value cannot be stored, to follow its path."""


def _text(value: Any) -> Members:
    return {"value": str(value)}


def _base64(value: bytes | bytearray) -> Members:
    return {"value": base64.b64encode(value).decode()}


def _decimal(value: Decimal) -> Members:
    # The case of the exponent is a matter of the thread's decimal context.
    return {"value": str(value).replace("e", "E")}


def _moment(value: datetime | time) -> Members:
    """Return the wall clock and what tells the zone: an offset behind it, or the zone's key."""
    zone = value.tzinfo
    members: dict[str, Any] = {}
    if type(zone) is ZoneInfo:
        if not zone.key:
            raise Unstorable("has a ZoneInfo without a key, which says nowhere what it is")
        members["zone"] = zone.key
        value = value.replace(tzinfo=None)
    elif zone is not None:
        offset = _fixed_offset(zone, value)
        if offset is None:
            kind = f"{type(zone).__module__}.{type(zone).__qualname__}"
            raise Unstorable(f"has a zone of the type {kind}: give it a zoneinfo.ZoneInfo")
        fixed: timezone | None = timezone(offset)
        if type(zone) is timezone and zone.tzname(None) != fixed.tzname(None):
            members["name"] = zone.tzname(None)
        if offset.microseconds:
            # Python writes these, and does not always read them again.
            members["offset"] = _duration(offset)["value"]
            fixed = None
        value = value.replace(tzinfo=fixed)
    if value.fold:
        members["fold"] = value.fold
    return {"value": value.isoformat(), **members}


def _fixed_offset(zone: tzinfo, value: datetime | time) -> timedelta | None:
    """Return the offset of a zone that has one all the year round, or None.

    A zone with summer time may name the offset of its winter, or fail, where it is asked for none.
    """
    if type(zone) is timezone:
        return zone.utcoffset(None)
    try:
        offsets = {value.utcoffset(), *(zone.utcoffset(when) for when in (None, *_SEASONS))}
    except Exception:  # noqa: BLE001 - whoever wrote the zone did not think of it
        return None
    return offsets.pop() if len(offsets) == 1 else None


def _placed(value: Any, members: Members) -> Any:
    """Put a moment back into its zone."""
    zone: Any = value.tzinfo
    if "zone" in members:
        zone = ZoneInfo(members["zone"])
    elif "offset" in members:
        zone = timezone(timedelta(*members["offset"]))
    if "name" in members:
        zone = timezone(zone.utcoffset(None), members["name"])
    return value.replace(tzinfo=zone, fold=members.get("fold", 0))


def _duration(value: timedelta) -> Members:
    return {"value": [value.days, value.seconds, value.microseconds]}


def _escaped(value: str) -> Members:
    # Pairs of surrogates must stay pairs, which other encodings join.
    return {"value": value.encode("unicode_escape").decode()}


WRITERS: Final[Mapping[type, tuple[str, Callable[[Any], Members]]]] = {
    bytes: ("bytes", _base64),
    bytearray: ("bytearray", _base64),
    Decimal: ("decimal", _decimal),
    datetime: ("datetime", _moment),
    time: ("time", _moment),
    date: ("date", _text),
    timedelta: ("timedelta", _duration),
    UUID: ("uuid", _text),
    pathlib.PurePosixPath: ("pure_posix_path", _text),
    pathlib.PureWindowsPath: ("pure_windows_path", _text),
    pathlib.PosixPath: ("posix_path", _text),
    pathlib.WindowsPath: ("windows_path", _text),
    UnsetType: ("unset", lambda _: {}),
}
"""How values of exactly a type are written, and under which tag."""

JSON_WRITERS: Final[Mapping[type, tuple[str, Callable[[Any], Members]]]] = {
    str: ("text", _escaped),
    int: ("int", lambda value: {"value": hex(value)}),
    float: ("float", lambda value: {"value": repr(value)}),
}
"""The same for values of JSON types that JSON cannot say."""

READERS: Final[Mapping[str, Callable[[Members], Any]]] = {
    "bytes": lambda said: base64.b64decode(said["value"], validate=True),
    "bytearray": lambda said: bytearray(base64.b64decode(said["value"], validate=True)),
    "decimal": lambda said: Decimal(said["value"]),
    "datetime": lambda said: _placed(datetime.fromisoformat(said["value"]), said),
    "time": lambda said: _placed(time.fromisoformat(said["value"]), said),
    "date": lambda said: date.fromisoformat(said["value"]),
    "timedelta": lambda said: timedelta(*said["value"]),
    "uuid": lambda said: UUID(said["value"]),
    "pure_posix_path": lambda said: pathlib.PurePosixPath(said["value"]),
    "pure_windows_path": lambda said: pathlib.PureWindowsPath(said["value"]),
    "posix_path": lambda said: pathlib.PosixPath(said["value"]),
    "windows_path": lambda said: pathlib.WindowsPath(said["value"]),
    "unset": lambda _: UNSET,
    "text": lambda said: said["value"].encode("ascii").decode("unicode_escape"),
    "int": lambda said: int(said["value"], 16),
    "float": lambda said: float(said["value"]),
}
"""How what stands next to a tag is read."""
